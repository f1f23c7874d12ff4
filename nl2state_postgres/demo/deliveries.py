"""Webhook deliveries as JSON lines, and the account and the record that each concerns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from nl2state import InvalidInputError, Json, Limits, TenantScope, fingerprint
from nl2state.keys import check_id

__all__ = ["Delivery", "InputError", "Line", "parse", "read", "scope_of"]

_PEPPER = "the pepper of a demo is no secret"
_ID_BYTES_MAX = Limits().id_bytes_max


class InputError(Exception):
    """An input that cannot be used. Its message names the file, and the line where there is one."""


@dataclass(frozen=True)
class Delivery:
    """One webhook delivery. Its `id` is the same each time that it is sent."""

    id: str
    event: str
    payload: dict[str, Json]

    @property
    def account(self) -> str:
        """The tenant: the account of the repository; without one the organisation, the sender, or the event."""
        return self._name("repository", "owner", "login") or self._fallback

    @property
    def record(self) -> str:
        """What the delivery concerns: the repository; without one the organisation, the sender, or the event."""
        return self._name("repository", "full_name") or self._fallback

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all of it, in its canonical form. Raises PayloadError where the payload has none."""
        return fingerprint({"delivery": self.id, "event": self.event, "payload": self.payload})

    @property
    def _fallback(self) -> str:
        return self._name("organization", "login") or self._name("sender", "login") or self.event

    def _name(self, *path: str) -> str | None:
        value: Json = self.payload
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        return value if isinstance(value, str) and value else None


@dataclass(frozen=True, slots=True)
class Line:
    """Where a delivery is in its file, in bytes, and the delivery."""

    offset: int
    length: int
    delivery: Delivery


def parse(line: bytes) -> Delivery:
    """Return the delivery of a line. Raises ValueError, with what is wrong with it."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("payload"), dict):
        raise ValueError('it is not an object with "delivery", "event" and an object "payload"')  # noqa: TRY004
    delivery = Delivery(value.get("delivery", ""), value.get("event", ""), cast("dict[str, Json]", value["payload"]))
    names = {"delivery": delivery.id, "event": delivery.event, "account": delivery.account, "record": delivery.record}
    for field, name in names.items():
        check_id(field, name, _ID_BYTES_MAX)
    return delivery


def read(path: Path) -> Iterator[Line]:
    """Yield each delivery of a file once, with its place.

    Blank lines are passed over, and so is a line that repeats an earlier delivery: webhooks are delivered at least
    once. Raises InputError for a file that cannot be read, a line that is no delivery, and one with the id of an
    earlier delivery and other content.
    """
    seen: dict[str, tuple[int, str]] = {}
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: it is not a regular file, which workers read at many places")
        with path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                delivery = _checked(path, number, line, seen) if line.strip() else None
                if delivery is not None:
                    yield Line(offset, len(line), delivery)
                offset += len(line)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def scope_of(account: str) -> TenantScope:
    """Return the scope of an account."""
    return TenantScope.derive(account, pepper=_PEPPER)


def _checked(path: Path, number: int, line: bytes, seen: dict[str, tuple[int, str]]) -> Delivery | None:
    """Return the delivery of a line, None where it repeats an earlier one. Raises InputError."""
    try:
        delivery = parse(line)
        content = delivery.fingerprint
    except InvalidInputError as error:
        raise InputError(f"{path}, line {number}: {error}") from None
    except ValueError as error:
        raise InputError(f"{path}, line {number}: {error}") from None
    earlier, known = seen.setdefault(delivery.id, (number, content))
    if known != content:
        raise InputError(f"{path}, line {number}: another delivery, in line {earlier}, has the same id")
    return delivery if earlier == number else None
