"""The command: `python -m tests.benchmarks`.

It exits with 1 where P13 or a bound did not hold, with 2 where it could not do what was asked, and with 130 after a
Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

import psycopg

from nl2state import StoreError
from nl2state_postgres.demo.interrupts import Interrupted, interruptible
from nl2state_postgres.demo.report import progress_bar
from tests.benchmarks import batch, comparison, delays, fairness, footprint, growth, retention
from tests.benchmarks.facts import facts
from tests.benchmarks.options import Options, parse
from tests.benchmarks.parts import BenchmarkError, Ground
from tests.benchmarks.peers import comparison as peers
from tests.benchmarks.report import tell
from tests.benchmarks.server import serving
from tests.benchmarks.written import FOLDER, write

PARTS: Final = (
    comparison.PART,
    fairness.PART,
    footprint.PART,
    batch.PART,
    delays.PART,
    peers.PART,
    retention.PART,
    growth.PART,
)
"""In the order of a run: the last two empty the tables, and leave many rows."""


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit status."""
    options = parse(arguments, {part.name: part.help for part in PARTS})
    try:
        return _run(options)
    except (BenchmarkError, StoreError, psycopg.Error, OSError) as error:
        words, status = str(error).partition("\n")[0], 2
        if isinstance(error, BenchmarkError):
            sys.stderr.write(error.log)
    except Interrupted as interrupted:
        words, status = "interrupted", interrupted.exit_status
    sys.stderr.write(f"benchmarks: {words}\n")
    return status


def _run(options: Options) -> int:
    with interruptible() as end, ExitStack() as resources:
        progress = resources.enter_context(progress_bar())
        progress("starting", 0, 0)
        dsn, schemas = resources.enter_context(serving(options.dsn, durable=options.durable))
        resources.callback(end)  # whatever is cleaned up, this comes before it
        chosen = [part for part in PARTS if (part.name in options.parts if options.parts else part.usual)]
        durable = [part.name for part in chosen if options.durable or part.durable]
        all_are = len(durable) == len(chosen)
        known = facts(dsn, schemas, durable=all_are, apart=() if all_are else durable)
        ground = Ground(dsn, schemas, options, progress)
        reports = {part.name: part.measure(ground) for part in chosen}
    tell(list(reports.values()), known, as_json=options.as_json)
    if options.write:
        with interruptible():
            write(reports, known, FOLDER, durable=options.durable)
    return max(report.exit_status for report in reports.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
