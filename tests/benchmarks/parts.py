"""What the command can measure: one part for each option that says what.

To add one, write a module that measures something and makes a Report of it, and name its Part in `__main__`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nl2state_postgres.demo.run import Progress
from tests.benchmarks.options import Options
from tests.benchmarks.report import Report

__all__ = ["BenchmarkError", "Ground", "Part"]


class BenchmarkError(Exception):
    """Something could not be measured. Its words are told in one line, and before them its log: what others said."""

    def __init__(self, words: str, log: str = "") -> None:
        super().__init__(words)
        self.log = log


@dataclass(frozen=True, slots=True)
class Ground:
    """What a part measures on: a server, a migrated schema of each side, what was asked for, and who is told of it."""

    dsn: str
    schemas: dict[str, str]
    options: Options
    progress: Progress


@dataclass(frozen=True, slots=True)
class Part:
    """Something that can be measured: by its name as an option, or unasked if it is `usual`."""

    name: str
    help: str
    measure: Callable[[Ground], Report]
    usual: bool = False
    durable: bool = False
    """Whether its commits wait for the disk whatever is asked for. The facts tell it."""
