"""The options of the command."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from tests.benchmarks.sides import CALLS

__all__ = ["Options", "parse"]

T = TypeVar("T")

_THREADS = "1,8"
_THREADS_MAX = 64
_ROUNDS = 11
_ROUNDS_OF_DELAYS = 5
_ROUNDS_MAX = 10_000
_CALLS = 600
_CALLS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. Without a `dsn`, on a temporary server."""

    threads: tuple[int, ...]
    rounds: int
    calls: int
    only: tuple[str, ...]
    dsn: str | None
    durable: bool
    delays: bool
    as_json: bool


def parse(arguments: Sequence[str]) -> Options:
    """Read the command's arguments. Exits with a line on stderr for those that make no sense."""
    parser = _Parser(prog="python -m tests.benchmarks", description=_DESCRIPTION, allow_abbrev=False)
    option = parser.add_argument
    rounds = f"of each call: {_ROUNDS}; of each harm: {_ROUNDS_OF_DELAYS}"
    option("--threads", type=_list_of(_threads), default=_THREADS, help=f"how many at once: {_THREADS}")
    option("--rounds", type=_up_to(_ROUNDS_MAX), help=rounds)
    option("--calls", type=_up_to(_CALLS_MAX), default=_CALLS, help=f"in a round, of all threads: {_CALLS}")
    option("--only", type=_list_of(_call), default=CALLS, help=f"these calls: {','.join(CALLS)}")
    option("--dsn", help="a server of yours: schemas are made there, and dropped; else a temporary one")
    option("--durable", action="store_true", help="let the temporary server sync to disk")
    option("--delays", action="store_true", help="measure how long a dead holder delays its successor instead")
    option("--json", dest="as_json", action="store_true", help="print one JSON object instead of tables")
    found = parser.parse_args(arguments)
    if found.durable and found.dsn is not None:
        parser.error("--durable is for the temporary server: yours has its own settings")
    if found.rounds is None:
        found.rounds = _ROUNDS_OF_DELAYS if found.delays else _ROUNDS
    return Options(**vars(found))


_DESCRIPTION = "Compare the library's calls with psycopg written by hand, on the same server, in the same run."


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
