"""Run a function under an idempotency key: reserve, run, complete, replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from nl2state.toolkit.holding import note_failure

if TYPE_CHECKING:
    from nl2state.idempotency import Attempt, ReserveOptions
    from nl2state.payload import Value
    from nl2state.store import Tenant, Transaction

__all__ = ["run_once", "run_once_in_transaction"]


def run_once(tenant: Tenant, key: str, work: Callable[[Attempt], Value], **options: Unpack[ReserveOptions]) -> Value:
    """Return the outcome of `work` for this key: by running it, or that of the attempt that completed before.

    For work whose effect is outside the database: where a process dies between the effect and its completion, the next
    attempt does it again, so hand the key on to whoever does it. When `work` raises, the attempt is abandoned, so that
    a retry runs at once, and what it raised is raised. The options are IdempotencyStore.reserve's; the other errors are
    those of `reserve` and `complete`, and UsageError for a key that was completed with a fingerprint alone.
    """
    reservation = tenant.idempotency.reserve(key, **options)
    if reservation.completed:
        return reservation.outcome
    attempt = reservation.attempt
    try:
        outcome = work(attempt)
    except BaseException as error:
        note_failure(error, "abandoning its attempt", lambda: tenant.idempotency.abandon(attempt))
        raise
    tenant.idempotency.complete(attempt, outcome)
    return outcome


def run_once_in_transaction(
    tenant: Tenant, key: str, work: Callable[[Transaction], Value], **options: Unpack[ReserveOptions]
) -> Value:
    """Return the outcome of `work` for this key, where all that it does is in the transaction that it is handed.

    What it writes and its outcome commit together, so that it is done once, whatever dies. Otherwise as `run_once`;
    where the commit's answer is lost (OutcomeUnknownError), reserving the key again tells.
    """
    reservation = tenant.idempotency.reserve(key, **options)
    if reservation.completed:
        return reservation.outcome
    attempt = reservation.attempt
    try:
        with tenant.transaction() as transaction:
            outcome = work(transaction)
            transaction.idempotency.complete(attempt, outcome)
    except BaseException as error:
        note_failure(error, "abandoning its attempt", lambda: tenant.idempotency.abandon(attempt))
        raise
    return outcome
