"""The options of the command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from tests.benchmarks.crowds import Crowd
from tests.benchmarks.sides import BY_HAND, BY_HAND_CODEC, CALLS

__all__ = ["Options", "parse"]

T = TypeVar("T")

_THREADS_MAX = 64
_ROUNDS_MAX = 10_000
_ROWS = 1_000_000
_ROWS_MAX = 100_000_000
_WRITES = 200_000
_CALLS = 600
_CALLS_MAX = 1_000_000
_SECONDS = 5
_SECONDS_MAX = 3_600
_CROWDS = (Crowd(1, 1), Crowd(8, 8), Crowd(8, 4))
_ON_FEWER = ("get", "update", "acquire", "renew", "reserve")
_CODECS = {"stdlib": (BY_HAND,), "same": (BY_HAND_CODEC,), "both": (BY_HAND, BY_HAND_CODEC)}


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, and how. Without a `dsn`, on a temporary server."""

    parts: tuple[str, ...]
    """The parts that were asked for; none of them: the usual ones."""
    crowds: tuple[Crowd, ...]
    rounds: int | None
    """None: as many as each part likes."""
    calls: int
    seconds: int
    rows: int
    writes: int
    only: tuple[str, ...] | None
    baselines: tuple[str, ...]
    dsn: str | None
    durable: bool
    as_json: bool
    write: bool

    def calls_of(self, crowd: Crowd) -> tuple[str, ...]:
        """Return the calls that a crowd makes: the named ones, or all; on fewer connections than threads, a few."""
        return self.only or (_ON_FEWER if crowd.is_pooled else CALLS)


def parse(arguments: Sequence[str], parts: Mapping[str, str]) -> Options:
    """Read the command's arguments; `parts` are the names of what it can measure, and what each is.

    Exits with a line on stderr for those that make no sense.
    """
    parser = _Parser(prog="python -m tests.benchmarks", description=_DESCRIPTION, allow_abbrev=False)
    measured = parser.add_argument_group("what is measured")
    for name, words in parts.items():
        measured.add_argument(f"--{name}", dest="parts", action="append_const", const=name, help=words)
    option = parser.add_argument_group("how").add_argument
    option("--threads", type=_list_of(_threads), help="how many at once: 1,8, and 8 on 4 connections")
    option("--connections", type=_threads, help="of our store, at most: as many as threads; by hand, each has its own")
    option("--only", type=_list_of(_call), help=f"compare these calls: {','.join(CALLS)}")
    option("--codec", choices=_CODECS, default="both", help="JSON by hand: the standard library's, or the same as ours")
    option("--rounds", type=_up_to(_ROUNDS_MAX), help="how often each thing is measured: 11 rounds, 5 harms, ...")
    option("--calls", type=_up_to(_CALLS_MAX), default=_CALLS, help=f"in a round, of all threads: {_CALLS}")
    option("--seconds", type=_up_to(_SECONDS_MAX), default=_SECONDS, help=f"of --fairness: {_SECONDS}")
    option("--rows", type=_up_to(_ROWS_MAX), default=_ROWS, help=f"of --growth and --retention: {_ROWS:,}")
    option("--writes", type=_up_to(_ROWS_MAX), default=_WRITES, help=f"of --growth, to each table: {_WRITES:,}")
    option("--durable", action="store_true", help="let commits wait for the disk; the temporary server syncs to it")
    option("--dsn", help="a server of yours: schemas are made there, and dropped; else a temporary one")
    option = parser.add_argument_group("what is told").add_argument
    option("--json", dest="as_json", action="store_true", help="print one JSON object instead of tables")
    option("--write", action="store_true", help="write tables and pictures to docs/benchmarks/ too")
    found = parser.parse_args(arguments)
    return Options(
        parts=tuple(found.parts or ()),
        crowds=_crowds(found.threads, found.connections),
        rounds=found.rounds,
        calls=found.calls,
        seconds=found.seconds,
        rows=found.rows,
        writes=found.writes,
        only=found.only,
        baselines=_CODECS[found.codec],
        dsn=found.dsn,
        durable=found.durable,
        as_json=found.as_json,
        write=found.write,
    )


def _crowds(threads: Sequence[int] | None, connections: int | None) -> tuple[Crowd, ...]:
    if threads is None and connections is None:
        return _CROWDS
    several = threads or sorted({crowd.threads for crowd in _CROWDS})
    return tuple(Crowd(number, min(number, connections or number)) for number in several)


_DESCRIPTION = """Measure the library on a server, in one run with what it is compared with.
Unless it is said what is measured: the comparison, the fairness and the footprint."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"benchmarks: {message}\n")


def _list_of(one: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def read(text: str) -> tuple[T, ...]:
        return tuple(dict.fromkeys(one(part.strip()) for part in text.split(",")))

    return read


def _up_to(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if text.isdecimal() and 1 <= int(text) <= most:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to {most}")

    return read


_threads = _up_to(_THREADS_MAX)


def _call(text: str) -> str:
    if text in CALLS:
        return text
    raise argparse.ArgumentTypeError(f"{text} is not one of the calls: {', '.join(CALLS)}")
