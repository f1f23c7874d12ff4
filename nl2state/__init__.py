"""Durable state, idempotency keys and fenced leases for blocking Python services.

This package is the contract: the protocols, the values that they speak of, and the errors. A backend is another
package: `nl2state_postgres`, or for tests `nl2state_memory`.
"""

from nl2state.errors import (
    AlreadyExistsError,
    AttemptInFlightError,
    BusyError,
    ConflictError,
    CorruptError,
    FencingRejectedError,
    InvalidInputError,
    KeyConflictError,
    LeaseBusyError,
    NotFoundError,
    OutcomeUnknownError,
    PayloadError,
    RevisionConflictError,
    SchemaError,
    SealingError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
    TerminalError,
    TransitionError,
    UsageError,
)
from nl2state.idempotency import Attempt, Completion, IdempotencyRecord, IdempotencyStore, KeyRequest, Reservation
from nl2state.keys import derive_key
from nl2state.leases import Fence, Lease, LeaseRecord, LeaseStore, Metadata
from nl2state.lifecycle import DEFAULT_LIFECYCLE, Lifecycle
from nl2state.limits import Limits
from nl2state.many import Outcomes
from nl2state.pages import Page
from nl2state.payload import Json, Value, fingerprint
from nl2state.pipeline import Pipeline
from nl2state.scope import TenantScope
from nl2state.states import ANY_REVISION, NEVER, FencedStateStore, NewState, StateRecord, StateStore, StateUpdate
from nl2state.store import RetainCursor, Retained, Store, System, Tenant, Transaction
from nl2state.toolkit.holding import Held
from nl2state.toolkit.idempotent import run_once, run_once_in_transaction
from nl2state.views import StateView

__all__ = [
    "ANY_REVISION",
    "DEFAULT_LIFECYCLE",
    "NEVER",
    "AlreadyExistsError",
    "Attempt",
    "AttemptInFlightError",
    "BusyError",
    "Completion",
    "ConflictError",
    "CorruptError",
    "Fence",
    "FencedStateStore",
    "FencingRejectedError",
    "Held",
    "IdempotencyRecord",
    "IdempotencyStore",
    "InvalidInputError",
    "Json",
    "KeyConflictError",
    "KeyRequest",
    "Lease",
    "LeaseBusyError",
    "LeaseRecord",
    "LeaseStore",
    "Lifecycle",
    "Limits",
    "Metadata",
    "NewState",
    "NotFoundError",
    "OutcomeUnknownError",
    "Outcomes",
    "Page",
    "PayloadError",
    "Pipeline",
    "Reservation",
    "RetainCursor",
    "Retained",
    "RevisionConflictError",
    "SchemaError",
    "SealingError",
    "StateRecord",
    "StateStore",
    "StateUpdate",
    "StateView",
    "Store",
    "StoreError",
    "StoreTimeoutError",
    "StoreUnavailableError",
    "System",
    "Tenant",
    "TenantScope",
    "TerminalError",
    "Transaction",
    "TransitionError",
    "UsageError",
    "Value",
    "derive_key",
    "fingerprint",
    "run_once",
    "run_once_in_transaction",
]
