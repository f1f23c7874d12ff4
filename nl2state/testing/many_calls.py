"""Every call for many that writes, and how a test brings about that it accepts an item or refuses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from nl2state.errors import (
    AlreadyExistsError,
    AttemptInFlightError,
    FencingRejectedError,
    KeyConflictError,
    RevisionConflictError,
    StoreError,
)
from nl2state.idempotency import Completion, KeyRequest, ReserveOptions
from nl2state.many import Outcomes
from nl2state.states import NewState, StateUpdate
from nl2state.store import Tenant, Transaction

__all__ = ["MANY", "Capabilities", "Many"]

_LIVES: Final[ReserveOptions] = {"request": "mine", "result_ttl_seconds": 600, "attempt_ttl_seconds": 600}

Capabilities: TypeAlias = Tenant | Transaction
"""Whatever has the calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """A call for many, and how a test brings about that it accepts an item or refuses it."""

    noun: Literal["states", "leases", "idempotency"]
    name: str
    argument: str
    options: dict[str, Any]
    prepare: Callable[[Tenant, str], Any]
    """Return an item of this name that will be accepted."""
    spoil: Callable[[Capabilities, str, Any], object]
    """Let the item be refused, unless it is undone."""
    refusal: type[StoreError]
    done: Callable[[Tenant, str], bool]
    """Whether the item was accepted."""
    named: Callable[[Any], str] | None
    """Return the name of an outcome, where it says one."""

    def __str__(self) -> str:
        return f"{self.noun}.{self.name}"

    @property
    def takes_fence(self) -> bool:
        """Whether its writes can be guarded."""
        return self.noun != "leases" and self.name != "reserve_many"

    def on(self, holder: Capabilities, items: Sequence[Any], *, atomic: bool, **options: Any) -> Outcomes[Any]:
        """Make the call."""
        call = getattr(getattr(holder, self.noun), self.name)
        outcomes: Outcomes[Any] = call(items, atomic=atomic, **self.options | options)
        return outcomes


def _of_the_record(tenant: Tenant, name: str) -> bool:
    record = tenant.states.get(name)
    return record is not None and record.value == "mine"


def _of_the_lease(tenant: Tenant, name: str) -> bool:
    lease = tenant.leases.inspect(name)
    return lease is not None and lease.expires_at - lease.acquired_at > timedelta(seconds=3_000)


def _of_the_key(tenant: Tenant, name: str) -> bool:
    if tenant.idempotency.get(name) is None:
        return False
    try:
        tenant.idempotency.reserve(name, **_LIVES)
    except AttemptInFlightError:  # of the same request
        return True
    except KeyConflictError:
        return False
    raise AssertionError("a live attempt is in flight")


def _of_the_outcome(tenant: Tenant, name: str) -> bool:
    record = tenant.idempotency.get(name)
    return record is not None and record.completed_at is not None and record.outcome == "mine"


def _to_update(tenant: Tenant, name: str) -> StateUpdate[Any]:
    return StateUpdate(name, "mine", tenant.states.create(name, "before").revision)


MANY: Final = (
    Many(
        noun="states",
        name="create_many",
        argument="items",
        options={},
        prepare=lambda _, name: NewState(name, "mine"),
        spoil=lambda holder, name, _: holder.states.create(name, "theirs"),
        refusal=AlreadyExistsError,
        done=_of_the_record,
        named=lambda record: str(record.id),
    ),
    Many(
        noun="states",
        name="update_many",
        argument="items",
        options={},
        prepare=_to_update,
        spoil=lambda holder, name, _: holder.states.update(name, "theirs", expected_revision=1),
        refusal=RevisionConflictError,
        done=_of_the_record,
        named=lambda record: str(record.id),
    ),
    Many(
        noun="leases",
        name="renew_many",
        argument="fences",
        options={"ttl_seconds": 6_000.0},
        prepare=lambda tenant, name: tenant.leases.acquire(name, owner="a", ttl_seconds=600).fence,
        spoil=lambda holder, _, fence: holder.leases.release(fence),
        refusal=FencingRejectedError,
        done=_of_the_lease,
        named=lambda lease: str(lease.fence.resource),
    ),
    Many(
        noun="idempotency",
        name="reserve_many",
        argument="items",
        options={"result_ttl_seconds": 600.0, "attempt_ttl_seconds": 600.0},
        prepare=lambda _, name: KeyRequest(name, "mine"),
        spoil=lambda holder, name, _: holder.idempotency.reserve(
            name, request="theirs", result_ttl_seconds=600, attempt_ttl_seconds=600
        ),
        refusal=KeyConflictError,
        done=_of_the_key,
        named=lambda reservation: str(reservation.attempt.key),
    ),
    Many(
        noun="idempotency",
        name="complete_many",
        argument="items",
        options={},
        prepare=lambda tenant, name: Completion(tenant.idempotency.reserve(name, **_LIVES).attempt, "mine"),
        spoil=lambda holder, _, item: holder.idempotency.complete(item.attempt, "theirs"),
        refusal=FencingRejectedError,
        done=_of_the_outcome,
        named=None,
    ),
)
"""All of them that write."""
