"""Random sequences of calls of every noun, and what came of each, in words that two backends can share."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias

from nl2state import (
    ANY_REVISION,
    NEVER,
    Attempt,
    Completion,
    Fence,
    KeyRequest,
    Lifecycle,
    NewState,
    Outcomes,
    Page,
    Reservation,
    RetainCursor,
    StateUpdate,
    StoreError,
    Tenant,
    Transaction,
    fingerprint,
)
from nl2state.idempotency import NO_OUTCOME
from nl2state.testing.harness import Harness

Chance: TypeAlias = random.Random
Steps: TypeAlias = "list[Step]"

_SCOPES: Final = ("one", "two")
_MANY: Final = (
    ("states", "get_many"),
    ("states", "create_many"),
    ("states", "update_many"),
    ("leases", "renew_many"),
    ("idempotency", "reserve_many"),
    ("idempotency", "complete_many"),
)
_ROUND_SECONDS: Final = 10.0
"""Every TTL and every move of the clock is a multiple: so what is left of a TTL, rounded up, is the same on both."""

_STRICT: Final = Lifecycle(
    initial="created",
    statuses=frozenset({"created", "running", "succeeded"}),
    terminal=frozenset({"succeeded"}),
    transitions={"created": frozenset({"running"}), "running": frozenset({"succeeded"})},
)


@dataclass(frozen=True, slots=True)
class Step:
    """A call, its arguments, and the scope that it is made in; or a block of steps.

    A grant or an attempt is named by its place among those that its resource or key had so far: the newest is 0.
    """

    noun: str
    name: str
    scope: str = "one"
    options: dict[str, Any] = field(default_factory=dict)
    client: int = 0
    steps: tuple[Step, ...] = ()
    raises: bool = False


@dataclass(frozen=True, slots=True)
class Past:
    """A fence or an attempt, by its name and how many were given since."""

    name: str
    age: int


class Undo(Exception):  # noqa: N818  # it says what is to happen
    """Raised to undo a block."""


def sequence(seed: int, length: int) -> list[Step]:
    """Return that many random steps; the same for the same seed."""
    chance = random.Random(seed)
    return [_step(chance, depth=0) for _ in range(length)]


def _step(chance: Chance, depth: int) -> Step:
    kinds: list[tuple[Callable[[Chance], Step], int]] = [(_of_states, 8), (_of_leases, 6), (_of_keys, 6), (_of_many, 5)]
    if depth == 0:
        kinds += [(_of_clocks, 3), (_of_system, 1)]
    if depth < 3 and chance.random() < 0.15:
        return _block(chance, depth)
    make = chance.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
    return make(chance)


def _block(chance: Chance, depth: int) -> Step:
    """Return a transaction or, in one, a savepoint: some end by an error, and some are fenced."""
    options = {"fence": _past(chance, "r")} if depth == 0 and chance.random() < 0.4 else {}
    steps = tuple(_step(chance, depth + 1) for _ in range(chance.randint(1, 6)))
    return Step("block", "transaction", chance.choice(_SCOPES), options, steps=steps, raises=chance.random() < 0.3)


def _of_states(chance: Chance) -> Step:
    name = chance.choice(
        ["create", "update", "update", "put", "delete", "get", "get_revision", "get_checkpoint", "list", "list_ids"]
    )
    options: dict[str, Any] = {} if name.startswith("list") else {"record_id": chance.choice(["s", "t", "S"])}
    if name in ("create", "update", "put"):
        options["value"] = chance.choice([1, {"b": [1, None], "a": "ü"}, b"\x00", "", None])
        options |= _some(
            chance,
            status=["created", "running", "succeeded", "queued"],
            ttl_seconds=[20.0, 60.0, NEVER if name == "update" else 40.0],
            schema_version=[1, 7],
            request_id=["q-1", "q-2"],
            lifecycle=[_STRICT],
            **({} if name == "update" else {"parent_id": ["p"]}),
        )
    if name in ("update", "delete"):
        options["expected_revision"] = chance.choice([1, 2, 3, 4, ANY_REVISION, ANY_REVISION])
    if name == "update":
        options |= _some(chance, expected_status=["created", "running"])
    if name == "get_checkpoint":
        options["request_id"] = chance.choice(["q-1", "q-2"])
    if name.startswith("list"):
        options |= _some(
            chance, prefix=["", "s", "S"], status=["running", "created"], after=["S", "s", "z"], limit=[1, 2, 100]
        )
    if name in ("create", "update", "put", "delete") and chance.random() < 0.3:
        options["fence"] = _past(chance, "r")
    return _made(chance, "states", name, options)


def _of_leases(chance: Chance) -> Step:
    name = chance.choice(
        ["acquire", "acquire", "try_acquire", "renew", "renew", "release", "revoke", "inspect", "list"]
    )
    options: dict[str, Any] = {}
    if name in ("acquire", "try_acquire"):
        options = {"resource": chance.choice(["r", "q"]), "owner": chance.choice(["a", "b"])}
        options["ttl_seconds"] = chance.choice([20.0, 60.0])
        options |= _some(chance, metadata=[{"host": "h"}, {}])
    elif name in ("renew", "release"):
        options["fence"] = _past(chance, chance.choice(["r", "q"]))
        options |= _some(chance, ttl_seconds=[20.0, 90.0]) if name == "renew" else {}
    elif name in ("revoke", "inspect"):
        options["resource"] = chance.choice(["r", "q"])
    else:
        options |= _some(chance, after=["q", "r"], limit=[1, 2])
    return _made(chance, "leases", name, options)


def _of_keys(chance: Chance) -> Step:
    name = chance.choice(
        ["reserve", "reserve", "reserve", "complete", "complete", "renew", "abandon", "get", "list", "forget"]
    )
    key = chance.choice(["k", "l"])
    options: dict[str, Any] = {}
    if name == "reserve":
        options = {"key": key, "request": chance.choice([1, 1, 1, {"another": None}])}
        options |= {
            "result_ttl_seconds": chance.choice([20.0, 80.0]),
            "attempt_ttl_seconds": chance.choice([20.0, 40.0]),
        }
        options |= _some(chance, record_id=["s"])
    elif name == "list":
        options |= _some(chance, record_id=["s"], after=["k"], limit=[1, 2])
    elif name in ("get", "forget"):
        options["key"] = key
    else:
        options["attempt"] = _past(chance, key)
        if name == "complete" and chance.random() < 0.3:
            options |= {"outcome": NO_OUTCOME, "outcome_fingerprint": fingerprint("outcome")}
        elif name == "complete":
            options["outcome"] = chance.choice([None, {"charge": 1}, b"x"])
        elif name == "renew":
            options |= _some(chance, ttl_seconds=[20.0, 90.0])
    if name in ("complete", "abandon", "forget") and chance.random() < 0.3:
        options["fence"] = _past(chance, "r")
    return _made(chance, "idempotency", name, options)


def _of_many(chance: Chance) -> Step:
    """Return a call for many; now and then it has two items of one name."""
    noun, name = chance.choice(_MANY)
    names = chance.sample(["s", "t", "S", "u"] if noun == "states" else ["k", "l", "m"], chance.randint(0, 3))
    if noun == "leases":
        names = chance.sample(["r", "q"], chance.randint(1, 2))
    if names and chance.random() < 0.05:
        names.append(names[0])
    if name == "get_many":
        return _made(chance, noun, name, {"record_ids": names})
    options: dict[str, Any] = {"fences" if noun == "leases" else "items": [_item(chance, name, each) for each in names]}
    options["atomic"] = chance.random() < 0.5
    if noun == "states":
        options |= _some(chance, lifecycle=[_STRICT])
    elif name == "reserve_many":
        options |= {"result_ttl_seconds": chance.choice([20.0, 80.0]), "attempt_ttl_seconds": 40.0}
    elif noun == "leases":
        options |= _some(chance, ttl_seconds=[20.0, 90.0])
    if name in ("create_many", "update_many", "complete_many") and chance.random() < 0.3:
        options["fence"] = _past(chance, "r")
    return _made(chance, noun, name, options)


def _item(chance: Chance, call: str, name: str) -> object:
    value: Any = chance.choice([1, {"b": [1, None], "a": "\u00fc"}, b"\x00", "", None])
    if call == "create_many":
        return NewState(name, value, **_some(chance, status=["running", "succeeded"], ttl_seconds=[20.0, 60.0]))
    if call == "update_many":
        options = _some(
            chance,
            expected_status=["created", "running"],
            status=["running", "succeeded"],
            ttl_seconds=[20.0, NEVER],
            request_id=["q-1"],
        )
        return StateUpdate(name, value, chance.choice([1, 2, 3, ANY_REVISION, ANY_REVISION]), **options)
    if call == "renew_many":
        return _past(chance, name)
    if call == "reserve_many":
        return KeyRequest(name, chance.choice([1, 1, 1, {"another": None}]), **_some(chance, record_id=["s"]))
    attempt: Any = _past(chance, name)
    if chance.random() < 0.3:
        return Completion(attempt, outcome_fingerprint=fingerprint("outcome"))
    return Completion(attempt, value)


def _of_clocks(chance: Chance) -> Step:
    return Step("clocks", "advance", options={"seconds": chance.choice([10.0, 20.0, 30.0, 60.0, -20.0, 4_000.0])})


def _of_system(chance: Chance) -> Step:
    options = {"limit": chance.choice([1, 2, 100]), "expired_age_seconds": 3_600.0}
    return Step("system", "retain", options=options | _some(chance, terminal_age_seconds=[0.0, 60.0]))


def _made(chance: Chance, noun: str, name: str, options: dict[str, Any]) -> Step:
    """Return the step; now and then one of its arguments is one that cannot be."""
    if options and chance.random() < 0.08:
        wrong = chance.choice(["", "\x00", -1, float("nan"), {"password": "x"}, ("a",), None])
        options = options | {chance.choice(sorted(options)): wrong}
    return Step(noun, name, chance.choice(_SCOPES), options, client=chance.randrange(2))


def _some(chance: Chance, **choices: list[Any]) -> dict[str, Any]:
    """Return some of these options."""
    return {name: chance.choice(values) for name, values in choices.items() if chance.random() < 0.35}


def _past(chance: Chance, name: str) -> Past:
    return Past(name, chance.choice([0, 0, 0, 0, 1, 2]))


class Run:
    """One backend's run of a sequence."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._given: dict[tuple[str, type, str], list[Any]] = {}
        self._ranks: dict[object, int] = {}
        self._began = harness.tenant("the clock").states.create("now", 1).created_at
        self.told: list[object] = []

    def do(self, steps: list[Step] | tuple[Step, ...], transaction: Transaction | None = None, scope: str = "") -> None:
        """Make the calls of a sequence, or of a block, and note what came of each."""
        for step in steps:
            if step.noun == "block":
                self._do_block(step, transaction, scope)
            elif step.noun == "clocks":
                self._harness.advance(step.options["seconds"])
            elif step.noun == "system":
                self._note(step, lambda step=step: self._retain(step.options))  # type: ignore[misc]  # bound at once
            else:
                self._do_call(step, transaction, scope)

    def _do_block(self, step: Step, transaction: Transaction | None, scope: str) -> None:
        def block() -> None:
            with suppress(Undo):
                if transaction is not None:
                    opened: Any = transaction.transaction()
                else:
                    opened = self._tenant(step).transaction(**self._options(step, step.scope))
                with opened as inner:
                    self.do(step.steps, inner, scope or step.scope)
                    if step.raises:
                        raise Undo

        self._note(step, block)

    def _do_call(self, step: Step, transaction: Transaction | None, scope: str) -> None:
        """Make a call, in the open transaction where it is of its scope: beside it, it could wait for it."""
        inside = transaction is not None and step.scope == scope
        holder = getattr(transaction if inside else self._tenant(step), step.noun)
        self._note(step, lambda: getattr(holder, step.name)(**self._options(step, step.scope)))

    def _tenant(self, step: Step) -> Tenant:
        return self._harness.tenant(step.scope, client=step.client)

    def _retain(self, options: dict[str, Any]) -> list[object]:
        """Clean up to the end, page by page."""
        system, after = self._harness.clients[0].system, None
        pages: list[object] = []
        while True:
            page = system.retain(after=after, **options)
            pages.append(page)
            after = page.after
            if after is None:
                return pages

    def _options(self, step: Step, scope: str) -> dict[str, Any]:
        return {name: self._resolved(name, value, scope) for name, value in step.options.items()}

    def _resolved(self, name: str, value: Any, scope: str) -> Any:
        """Return an argument, or a part of one, with the grants and attempts that it names."""
        if isinstance(value, Past):
            kind: type = Fence if name in ("fence", "fences") else Attempt
            given = self._given.get((scope, kind, value.name), [])
            unknown = Fence(value.name, "a", 1) if kind is Fence else Attempt(value.name, 1)
            return given[-1 - value.age] if value.age < len(given) else unknown
        if isinstance(value, list):
            return [self._resolved(name, each, scope) for each in value]
        if isinstance(value, Completion):
            return replace(value, attempt=self._resolved("attempt", value.attempt, scope))
        return value

    def _note(self, step: Step, call: Callable[[], Any]) -> None:
        try:
            returned = call()
        except StoreError as error:
            self.told.append((step.noun, step.name, *self._refusal(error, step.scope)))
            return
        granted = getattr(returned, "fence", None)
        if isinstance(granted, Fence) and step.name != "renew":
            self._given.setdefault((step.scope, Fence, granted.resource), []).append(granted)
        for each in _accepted(returned) if isinstance(returned, Outcomes) else [returned]:
            if isinstance(each, Reservation) and not each.completed:
                self._given.setdefault((step.scope, Attempt, each.attempt.key), []).append(each.attempt)
        self.told.append((step.noun, step.name, self._plain(returned, "", step.scope)))

    def _refusal(self, error: StoreError, scope: str) -> tuple[str, str, object]:
        said = {name: self._plain(getattr(error, name), name, scope) for name in ("index", *error.fields)}
        return type(error).__name__, error.code, said

    def _plain(self, value: object, name: str, scope: str, of: object = None) -> object:  # noqa: PLR0911  # one a kind
        """Return what two backends have to say alike: times from the beginning, tokens by when they were first seen."""
        if isinstance(value, datetime):
            return math.floor((value - self._began).total_seconds() / _ROUND_SECONDS)
        if name in ("token", "number"):  # those of two resources, or keys, may be equal
            return self._ranks.setdefault((scope, of, value), len(self._ranks))
        if name == "deadline":
            return name
        if name == "retry_after_seconds" and isinstance(value, float):
            return math.ceil(value / _ROUND_SECONDS)
        if isinstance(value, RetainCursor):
            by_time = value.sweep.endswith("states") and value.key
            return value.sweep, self._plain(datetime.fromisoformat(value.key), "", scope) if by_time else value.key
        if isinstance(value, Page) or (is_dataclass(value) and not isinstance(value, type)):
            of = getattr(value, "resource", None), getattr(value, "key", None)
            said = {each.name: self._plain(getattr(value, each.name), each.name, scope, of) for each in fields(value)}
            return type(value).__name__, said
        if isinstance(value, Outcomes):
            refusals = [(index, *self._refusal(error, scope)) for index, error in value.refusals.items()]
            return [self._plain(item, name, scope) for item in _accepted(value)], refusals
        if isinstance(value, list | tuple):
            return [self._plain(item, name, scope) for item in value]
        return value


def _accepted(outcomes: Outcomes[Any]) -> list[Any]:
    return [outcomes[index] for index in range(len(outcomes)) if index not in outcomes.refusals]


__all__ = ["Run", "Step", "sequence"]
