"""The calls that are compared with a peer's, and their rounds: one side and then the other, in two processes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.crowds import Crowd
from tests.benchmarks.ours import open_ours
from tests.benchmarks.parts import BenchmarkError, Ground, Part
from tests.benchmarks.peers.database import database
from tests.benchmarks.peers.environment import pinned, ready
from tests.benchmarks.peers.peer import Peer
from tests.benchmarks.report import Report, Table
from tests.benchmarks.rounds import Calling, Contender, Result, TeamOnLanes, compare, team_of
from tests.benchmarks.sides import CALLS, OURS, Lane

__all__ = ["PAIRS", "PART", "Pair", "PeerComparison"]

_NL2DATA = "nl2data-workflow-postgres"
_LANGGRAPH = "langgraph-checkpoint-postgres"
_DBOS = "dbos"
_SIDES = {
    _NL2DATA: "tests.benchmarks.peers.side_nl2data",
    _LANGGRAPH: "tests.benchmarks.peers.side_langgraph",
    _DBOS: "tests.benchmarks.peers.side_dbos",
}
_ROUNDS = 11
_ONE_STEP = "one_step"
_ONE_STEP_WEIGHT = 4
"""How many calls of the others one of it counts for, so that each round takes about as long."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A call of ours, and the call of a peer that is nearest to it."""

    peer: str
    call: str
    peer_call: str

    @property
    def parts(self) -> set[str]:
        """The calls that ours is made of."""
        return {"reserve", "transaction"} if self.call == _ONE_STEP else {self.call}


PAIRS: Final = (
    Pair(_NL2DATA, "get", "get"),
    Pair(_NL2DATA, "get_revision", "get_revision"),
    Pair(_NL2DATA, "create", "create"),
    Pair(_NL2DATA, "update", "update"),
    Pair(_NL2DATA, "update_fenced", "update_fenced"),
    Pair(_NL2DATA, "acquire", "acquire_lease"),
    Pair(_NL2DATA, "renew", "renew_lease"),
    Pair(_NL2DATA, "release", "release_lease"),
    Pair(_NL2DATA, "inspect", "inspect_lease"),
    Pair(_NL2DATA, "reserve", "reserve_idempotency"),
    Pair(_NL2DATA, "replay", "replay"),
    Pair(_NL2DATA, "complete", "complete_idempotency"),
    Pair(_NL2DATA, "get_key", "get_idempotency"),
    Pair(_LANGGRAPH, "get", "get_tuple"),
    Pair(_LANGGRAPH, "put", "put"),
    Pair(_LANGGRAPH, "update", "put"),
    Pair(_DBOS, _ONE_STEP, "workflow"),
    Pair(_DBOS, "replay", "replay"),
)
"""In the order in which they are measured: by peer."""


class PeerComparison(Report):
    """What each call took, ours and a peer's."""

    def __init__(self, results: Sequence[tuple[Pair, Result]]) -> None:
        self._results = results

    def figures(self) -> dict[str, Any]:
        """Return microseconds, and how many times as long as ours the peer took, by peer, call and crowd."""
        return {
            "peers": [
                {"peer": pair.peer, "version": pinned()[pair.peer], "peer_call": pair.peer_call, **result.figures()}
                for pair, result in self._results
            ]
        }

    def tables(self) -> list[Table]:
        """Return a table for each peer and crowd."""
        kinds = dict.fromkeys((pair.peer, result.crowd) for pair, result in self._results)
        return [self._table(peer, crowd) for peer, crowd in kinds]

    def _table(self, peer: str, crowd: Crowd) -> Table:
        rows = [
            [
                pair.call,
                pair.peer_call,
                f"{result.median_us(OURS):,.1f}",
                f"{result.median_us(peer):,.1f}",
                *result.ratio(peer).words(),
            ]
            for pair, result in self._results
            if (pair.peer, result.crowd) == (peer, crowd)
        ]
        headings = ["call", "its", "ours us", "its us", "/ ours", "quartiles"]
        note = "Above 1, ours is faster. What a call promises differs: docs/benchmarks.md says how."
        return Table(f"{peer} {pinned()[peer]}, {crowd}", headings, rows, note)


def _measure(ground: Ground) -> PeerComparison:
    only = ground.options.only or CALLS
    pairs = [pair for pair in PAIRS if pair.parts <= {*only}]
    if not pairs:
        raise BenchmarkError(f"no peer has any of these calls: {', '.join(only)}")
    python = ready(ground.progress)
    run = secrets.token_hex(6)
    with ExitStack() as databases:
        dsns = {
            peer: databases.enter_context(
                database(
                    ground.dsn,
                    ground.schemas[OURS],
                    f"nl2state_benchmark_{run}_{number}",
                    durable=ground.options.durable,
                )
            )
            for number, peer in enumerate(dict.fromkeys(pair.peer for pair in pairs))
        }
        several = dict.fromkeys(crowd.threads for crowd in ground.options.crowds)
        crowds = [Crowd(threads, threads) for threads in several]  # each has as many connections as a peer takes
        return PeerComparison([found for crowd in crowds for found in _of_crowd(ground, crowd, pairs, dsns, python)])


def _of_crowd(
    ground: Ground, crowd: Crowd, pairs: Sequence[Pair], dsns: Mapping[str, str], python: Path
) -> Iterator[tuple[Pair, Result]]:
    options = ground.options
    rounds = options.rounds or _ROUNDS
    with (
        open_ours(ground.dsn, ground.schemas[OURS], crowd.threads, durable=options.durable) as sides,
        team_of(crowd.threads) as team,
    ):
        ground.progress(f"making records, {crowd}", 0, 0)
        lanes = team.lanes(sides, f"peers-{crowd.threads}")
        for name, dsn in dsns.items():
            ground.progress(f"opening {name}", 0, 0)
            with Peer(name, python, _SIDES[name], dsn, crowd.threads) as peer:
                for pair in (pair for pair in pairs if pair.peer == name):
                    is_one_step = pair.call == _ONE_STEP
                    calling: Sequence[Calling] = [_OneStep(lane) for lane in lanes] if is_one_step else lanes
                    contenders: list[Contender] = [
                        TeamOnLanes(OURS, team, calling),
                        _PeerCall(name, peer, pair.peer_call),
                    ]
                    calls = options.calls // (_ONE_STEP_WEIGHT if is_one_step else 1)
                    for result in compare(contenders, pair.call, crowd, rounds=rounds, calls=calls):
                        ground.progress(f"{name}: {pair.call}, {crowd}", len(result.us[OURS]), rounds)
                    yield pair, result


@dataclass(frozen=True, slots=True)
class _PeerCall:
    """A contender in a process of its own, which calls it by another name."""

    name: str
    peer: Peer
    its_call: str

    def round(self, _: str, calls: int) -> float:
        return self.peer.round(self.its_call, calls)


class _OneStep:
    """A lane whose call does what a workflow of one step does: it reserves a key, writes, and keeps the outcome."""

    def __init__(self, lane: Lane) -> None:
        self.side = self
        self._lane = lane

    def arguments(self, _: str) -> tuple[Any, ...]:
        return *self._lane.arguments("reserve"), *self._lane.arguments("update_fenced")

    def one_step(self, key: str, record_id: str, revision: int, fence: Any) -> object:
        attempt = self._lane.side.reserve(key)
        return self._lane.side.transaction(record_id, revision, attempt, fence)


PART: Final = Part("peers", "three published libraries: installed on the first run", _measure)
