"""The record that a delivery changes: how many came of each event, the last of each, and a digest of them all."""

from __future__ import annotations

from typing import TypedDict, cast

from nl2state import Json, Value
from nl2state_postgres.demo.deliveries import Delivery

__all__ = ["EMPTY_DIGEST", "RecordState", "add_to_digest", "apply", "as_state"]

EMPTY_DIGEST = "0" * 64
"""The digest of no delivery."""

_MODULUS = 2**256


class RecordState(TypedDict):
    """The state of a record. `last_seen` has the id of the last delivery of each event, in the order of its writes."""

    counts: dict[str, int]
    last_seen: dict[str, str]
    digest: str


def apply(current: Value, delivery: Delivery) -> dict[str, Json]:
    """Return the state of a record after one more delivery; None stands for a record that is not there yet."""
    state = as_state(current)
    count = state["counts"].get(delivery.event, 0) + 1
    return {
        "counts": {**state["counts"], delivery.event: count},
        "last_seen": {**state["last_seen"], delivery.event: delivery.id},
        "digest": add_to_digest(state["digest"], delivery),
    }


def as_state(value: Value) -> RecordState:
    """Return a record's value as its state; None stands for a record that is not there."""
    return RecordState(counts={}, last_seen={}, digest=EMPTY_DIGEST) if value is None else cast("RecordState", value)


def add_to_digest(digest: str, delivery: Delivery) -> str:
    """Add the SHA-256 of a delivery to a digest, modulo 2^256.

    The sum does not depend on the order of deliveries, and one that is lost, doubled or changed makes it another.
    """
    content = int(delivery.fingerprint.removeprefix("sha256:"), 16)
    return f"{(int(digest, 16) + content) % _MODULUS:064x}"
