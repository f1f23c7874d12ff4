"""The command: `python -m tests.benchmarks`.

It exits with 1 where P13 did not hold, with 2 where it could not do what was asked, and with 130 after a Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import psycopg

from nl2state import StoreError
from nl2state_postgres.demo.interrupts import Interrupted, interruptible
from nl2state_postgres.demo.report import progress_bar
from nl2state_postgres.demo.run import Progress
from tests.benchmarks import delays
from tests.benchmarks.by_hand import open_by_hand
from tests.benchmarks.options import Options, parse
from tests.benchmarks.ours import open_ours
from tests.benchmarks.report import Comparison, Delays, Report, tell
from tests.benchmarks.rounds import Result, compare, team_of
from tests.benchmarks.server import facts, serving


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit status."""
    options = parse(arguments)
    try:
        return _run(options)
    except (StoreError, psycopg.Error, delays.DelayError, OSError) as error:
        words, status = str(error).partition("\n")[0], 2
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
        known = facts(dsn, schemas["by_hand"])
        if options.delays:
            measured: Report = Delays(delays.measure(dsn, schemas["ours"], options.rounds, progress))
        else:
            measured = Comparison(list(_results(dsn, schemas, options, progress)))
    tell(measured, known, as_json=options.as_json)
    return measured.exit_status


def _results(dsn: str, schemas: dict[str, str], options: Options, progress: Progress) -> Iterator[Result]:
    for threads in options.threads:
        at_once = f"{threads} thread{'' if threads == 1 else 's'}"
        with (
            open_ours(dsn, schemas["ours"], threads) as ours,
            open_by_hand(dsn, schemas["by_hand"], threads) as by_hand,
            team_of(threads) as team,
        ):
            progress(f"making records, {at_once}", 0, 0)
            lanes = team.lanes(ours), team.lanes(by_hand)
            for call in options.only:
                for result in compare(team, lanes, call, rounds=options.rounds, calls=options.calls):
                    progress(f"{call}, {at_once}", len(result.ours_us), options.rounds)
                yield result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
