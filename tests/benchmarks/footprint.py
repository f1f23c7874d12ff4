"""What the library costs a process before it does anything, and by being there: the time of its import, its memory."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.parts import BenchmarkError, Ground, Part
from tests.benchmarks.report import Report, Table
from tests.benchmarks.sides import BY_HAND, OURS
from tests.benchmarks.weighing import CONNECTIONS

__all__ = ["PART", "Footprint"]

_ROUNDS_OF_IMPORTS = 15
_ROUNDS_OF_MEMORY = 5
_IMPORTS: Final = {
    "nothing": "pass",
    "psycopg": "import psycopg, psycopg_pool",
    "nl2state": "import nl2state",
    "nl2state_postgres": "import nl2state_postgres",
}
_WEIGHED: Final = {OURS: "a store", BY_HAND: "by hand"}
_ROOT = Path(__file__).parents[2]
_TIMEOUT_SECONDS = 120.0


class Footprint(Report):
    """The milliseconds of each import, and the bytes of each side before it was opened and after its calls."""

    def __init__(
        self, imports: Mapping[str, Sequence[float]], memory: Mapping[str, Sequence[tuple[int, int]]], measure: str
    ) -> None:
        self._imports = imports
        self._memory = memory
        self._measure = measure

    def figures(self) -> dict[str, Any]:
        """Return medians."""
        return {
            "imports": {
                name: {"ms": round(statistics.median(ms), 1), "added_ms": round(self._added_ms(name), 1)}
                for name, ms in self._imports.items()
            },
            "memory": {
                "connections": CONNECTIONS,
                "measure": self._measure,
                **{name: {"added_mb": round(self._added_mb(name), 2)} for name in self._memory},
            },
        }

    def tables(self) -> list[Table]:
        """Return a table of the imports, and one of the memory."""
        imports = [
            (_IMPORTS[name] if name != "nothing" else "an empty interpreter", f"{statistics.median(ms):.0f}", added)
            for name, ms in self._imports.items()
            for added in ([f"{self._added_ms(name):.0f}"] if name != "nothing" else [""])
        ]
        memory = [
            (f"{_WEIGHED[name]}, {CONNECTIONS} connections", *self._mb(name), f"{self._added_mb(name):.2f}")
            for name in self._memory
        ]
        return [
            Table("Import, in a fresh process", ("python -c", "ms", "more than empty ms"), imports),
            Table(
                f"Memory of a process ({self._measure})",
                ("it has", "before MB", "after its calls MB", "added MB"),
                memory,
                "Before: everything is imported. After: each connection ran the calls.",
            ),
        ]

    def _added_ms(self, name: str) -> float:
        return statistics.median(
            ms - empty for ms, empty in zip(self._imports[name], self._imports["nothing"], strict=True)
        )

    def _added_mb(self, name: str) -> float:
        return statistics.median(after - before for before, after in self._memory[name]) / 1e6

    def _mb(self, name: str) -> list[str]:
        before, after = zip(*self._memory[name], strict=True)
        return [f"{statistics.median(some) / 1e6:.1f}" for some in (before, after)]


def _measure(ground: Ground) -> Footprint:
    rounds = ground.options.rounds or _ROUNDS_OF_IMPORTS
    imports: dict[str, list[float]] = {name: [] for name in _IMPORTS}
    for number in range(-1, rounds):  # the first is not counted: it reads the files from the disk
        ground.progress("imports", max(0, number), rounds)
        for name, code in _IMPORTS.items():
            started = time.perf_counter()
            _run(["-c", code])
            if number >= 0:
                imports[name].append(1e3 * (time.perf_counter() - started))
    rounds = ground.options.rounds or _ROUNDS_OF_MEMORY
    memory: dict[str, list[tuple[int, int]]] = {name: [] for name in _WEIGHED}
    measure = ""
    for number in range(rounds):
        ground.progress("memory", number, rounds)
        for name in _WEIGHED:
            charge = {"dsn": ground.dsn, "schema": ground.schemas[name], "side": name, "name": f"memory-{number}"}
            told = json.loads(_run(["-m", "tests.benchmarks.weighing"], json.dumps(charge)))
            memory[name].append((told["before"], told["after"]))
            measure = told["measure"]
    return Footprint(imports, memory, measure)


def _run(arguments: list[str], told: str = "") -> str:
    run = subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        input=told,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_SECONDS,
    )
    if run.returncode != 0:
        raise BenchmarkError(f"a process failed: {(run.stderr.strip().splitlines() or ['it said nothing'])[-1]}")
    return run.stdout


PART: Final = Part("footprint", "how long the import takes, and the memory of a store", _measure, usual=True)
