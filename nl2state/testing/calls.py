"""Every public call of a store, with arguments that will do, and what came of it in words that two runs can share."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, Final

from nl2state.errors import StoreError
from nl2state.idempotency import Attempt, Completion, IdempotencyStore, KeyRequest, ReserveOptions
from nl2state.leases import Fence, LeaseStore
from nl2state.lifecycle import DEFAULT_LIFECYCLE
from nl2state.many import Outcomes
from nl2state.payload import Value
from nl2state.states import FencedStateStore, NewState, StateUpdate
from nl2state.store import Store, System, Tenant
from nl2state.testing.harness import Harness

__all__ = ["CALLS", "TENANT_CALLS", "Prepared", "PublicCall", "plain", "prepare", "told"]

_OF_ONE_RUN: Final = {"token", "number", "deadline", "scope"}
_BUSY_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A scope with rows of each noun: what calls can be made with. All its names begin with one prefix.

    There are `record` at revision 1 and `ended` in a terminal status; the lease `fence`; the live `attempt` and the
    completed key `done`. `absent` names nothing.
    """

    store: Store
    tenant: Tenant
    record: str
    ended: str
    absent: str
    done: str
    request: Value
    owner: str
    fence: Fence
    attempt: Attempt

    def snapshot(self) -> tuple[object, ...]:
        """Return all that can be listed of the scope."""
        tenant = self.tenant
        return tenant.states.list().items, tenant.leases.list().items, tenant.idempotency.list().items


def prepare(
    harness: Harness, name: str = "acme", *, client: int = 0, prefix: str = "", owner: str = "a", value: Value = 1
) -> Prepared:
    """Make the rows of a scope."""
    tenant = harness.tenant(name, client=client)
    tenant.states.create(f"{prefix}s", value)
    tenant.states.create(f"{prefix}ended", value, status="succeeded")
    fence = tenant.leases.acquire(f"{prefix}r", owner=owner, ttl_seconds=600, metadata={"m": value}).fence  # type: ignore[dict-item]  # no test's is bytes
    options: ReserveOptions = {"request": value, "result_ttl_seconds": 600, "attempt_ttl_seconds": 600}
    done = tenant.idempotency.reserve(f"{prefix}done", **options).attempt
    tenant.idempotency.complete(done, value)
    return Prepared(
        store=harness.client(client),
        tenant=tenant,
        record=f"{prefix}s",
        ended=f"{prefix}ended",
        absent=f"{prefix}absent",
        done=f"{prefix}done",
        request=value,
        owner=owner,
        fence=fence,
        attempt=tenant.idempotency.reserve(f"{prefix}k", **options).attempt,
    )


@dataclass(frozen=True, slots=True)
class PublicCall:
    """A call of the contract: of a noun, or of a tenant or the system itself."""

    noun: str
    name: str
    arguments: Callable[[Prepared], dict[str, Any]]
    """Arguments that a prepared scope answers without a refusal; of two that exclude one another, one."""

    def __str__(self) -> str:
        return f"{self.noun}.{self.name}"

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters that the contract gives it."""
        found = dict(inspect.signature(getattr(_PROTOCOLS[self.noun], self.name)).parameters)
        del found["self"]
        return found

    def run(self, prepared: Prepared, **changed: Any) -> object:
        """Make the call, some of whose arguments are changed. A block is entered, and left."""
        return self.on(self.holder(prepared), prepared, **changed)

    def holder(self, prepared: Prepared) -> object:
        """Return what the call is made on."""
        if self.noun == "system":
            return prepared.store.system
        return prepared.tenant if self.noun == "tenant" else getattr(prepared.tenant, self.noun)

    def on(self, holder: object, prepared: Prepared, **changed: Any) -> object:
        """Make the call on another holder: a transaction's."""
        returned = getattr(holder, self.name)(**self.arguments(prepared) | changed)
        if self.noun != "tenant":
            return returned
        with returned as entered:
            return getattr(entered, "fence", None)


def told(call: Callable[[], object]) -> object:
    """Return what a call returned or which error of the store's it raised, as `plain` says it."""
    try:
        returned = call()
    except StoreError as error:
        said = {name: plain(getattr(error, name), name) for name in ("index", *error.fields)}
        return "raised", type(error).__name__, error.code, said
    return "returned", plain(returned)


def plain(value: object, name: str = "") -> object:
    """Return a value without what is of one run alone: times, tokens, and parts of a duration that is left."""
    if name in _OF_ONE_RUN or isinstance(value, datetime):
        return name or "a time"
    if name == "retry_after_seconds" and isinstance(value, float):
        return math.ceil(value / _BUSY_SECONDS)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, {
            field.name: plain(getattr(value, field.name), field.name) for field in fields(value)
        }
    if isinstance(value, Outcomes):
        return [told(partial(value.__getitem__, index)) for index in range(len(value))]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.name if isinstance(value, Enum) else value


_PROTOCOLS: Final[dict[str, type]] = {
    "states": FencedStateStore,
    "leases": LeaseStore,
    "idempotency": IdempotencyStore,
    "tenant": Tenant,
    "system": System,
}


def _written(p: Prepared) -> dict[str, Any]:
    return {
        "status": "running",
        "ttl_seconds": 600.0,
        "schema_version": 2,
        "request_id": f"{p.record}-request",
        "lifecycle": DEFAULT_LIFECYCLE,
        "fence": p.fence,
    }


def _together(p: Prepared) -> dict[str, Any]:
    return {"atomic": True, "lifecycle": DEFAULT_LIFECYCLE, "fence": p.fence}


def _listed(p: Prepared) -> dict[str, Any]:
    return {"prefix": p.record[:1], "status": "created", "after": p.absent, "limit": 10}


def _granted(p: Prepared) -> dict[str, Any]:
    return {"resource": p.absent, "owner": p.owner, "ttl_seconds": 600.0, "metadata": {"m": 1}}


CALLS: Final = (
    PublicCall(
        "states",
        "create",
        lambda p: {"record_id": p.absent, "value": p.request, "parent_id": p.record, **_written(p)},
    ),
    PublicCall(
        "states",
        "update",
        lambda p: {
            "record_id": p.record,
            "value": p.request,
            "expected_revision": 1,
            "expected_status": "created",
            **_written(p),
        },
    ),
    PublicCall(
        "states",
        "put",
        lambda p: {"record_id": p.record, "value": p.request, "parent_id": p.record, **_written(p)},
    ),
    PublicCall("states", "get", lambda p: {"record_id": p.record}),
    PublicCall("states", "require", lambda p: {"record_id": p.record}),
    PublicCall("states", "get_revision", lambda p: {"record_id": p.record}),
    PublicCall("states", "get_checkpoint", lambda p: {"record_id": p.record, "request_id": "q"}),
    PublicCall("states", "get_many", lambda p: {"record_ids": [p.record, p.absent, p.ended, p.record]}),
    PublicCall(
        "states",
        "create_many",
        lambda p: {"items": [NewState(p.absent, p.request), NewState(f"{p.absent} too", p.request)], **_together(p)},
    ),
    PublicCall("states", "update_many", lambda p: {"items": [StateUpdate(p.record, p.request, 1)], **_together(p)}),
    PublicCall("states", "list", _listed),
    PublicCall("states", "list_ids", _listed),
    PublicCall("states", "delete", lambda p: {"record_id": p.record, "expected_revision": 1, "fence": p.fence}),
    PublicCall("leases", "acquire", lambda p: {"wait_seconds": 0.0, **_granted(p)}),
    PublicCall("leases", "try_acquire", _granted),
    PublicCall("leases", "renew", lambda p: {"fence": p.fence, "ttl_seconds": 900.0}),
    PublicCall("leases", "renew_many", lambda p: {"fences": [p.fence], "ttl_seconds": 900.0, "atomic": True}),
    PublicCall("leases", "release", lambda p: {"fence": p.fence}),
    PublicCall("leases", "revoke", lambda p: {"resource": p.fence.resource}),
    PublicCall("leases", "inspect", lambda p: {"resource": p.fence.resource}),
    PublicCall("leases", "list", lambda p: {"after": p.absent, "limit": 10}),
    PublicCall(
        "idempotency",
        "reserve",
        lambda p: {
            "key": p.absent,
            "request": p.request,
            "record_id": p.record,
            "result_ttl_seconds": 600.0,
            "attempt_ttl_seconds": 600.0,
            "wait_seconds": 0.0,
        },
    ),
    PublicCall(
        "idempotency",
        "reserve_many",
        lambda p: {
            "items": [KeyRequest(p.absent, p.request, record_id=p.record), KeyRequest(p.done, p.request)],
            "result_ttl_seconds": 600.0,
            "attempt_ttl_seconds": 600.0,
            "atomic": True,
        },
    ),
    PublicCall("idempotency", "renew", lambda p: {"attempt": p.attempt, "ttl_seconds": 900.0}),
    PublicCall("idempotency", "complete", lambda p: {"attempt": p.attempt, "outcome": p.request, "fence": p.fence}),
    PublicCall(
        "idempotency",
        "complete_many",
        lambda p: {"items": [Completion(p.attempt, p.request)], "atomic": True, "fence": p.fence},
    ),
    PublicCall("idempotency", "abandon", lambda p: {"attempt": p.attempt, "fence": p.fence}),
    PublicCall("idempotency", "get", lambda p: {"key": p.done}),
    PublicCall("idempotency", "list", lambda p: {"record_id": p.record, "after": p.absent, "limit": 10}),
    PublicCall("idempotency", "forget", lambda p: {"key": p.done, "fence": p.fence}),
    PublicCall("tenant", "transaction", lambda p: {"fence": p.fence}),
    PublicCall("tenant", "hold", lambda p: {"wait_seconds": 0.0, **_granted(p)}),
    PublicCall(
        "system",
        "retain",
        lambda _: {"terminal_age_seconds": None, "expired_age_seconds": 86_400.0, "limit": 10, "after": None},
    ),
)
"""All of them."""

TENANT_CALLS: Final = tuple(call for call in CALLS if call.noun != "system")
"""Those of a tenant: they depend on its own rows alone."""
