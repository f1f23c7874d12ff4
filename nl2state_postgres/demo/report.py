"""What a run shows: a progress bar while it works, and then a table and a sentence, or one JSON object."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from nl2state_postgres.demo.run import Outcome, Progress
from nl2state_postgres.demo.serving import TRANSACTION_IDLE_SECONDS, TTL_SECONDS

__all__ = ["as_json", "progress_bar", "show", "verdict"]

_CALLS = ("reserve", "acquire", "get", "write", "complete", "commit", "release")
_LATE_COMMITS = {"failed": "failed", "refused": "was refused"}
_UPDATE_SECONDS = 0.1
_BOUND_SECONDS = TTL_SECONDS + TRANSACTION_IDLE_SECONDS


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Yield what shows a bar on stderr, where that is a terminal; elsewhere nothing is shown."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("", total=None)
        last = ("", 0.0)

        def progress(what: str, done: int, of: int) -> None:
            nonlocal last
            if what != last[0] or time.monotonic() - last[1] > _UPDATE_SECONDS:
                last = (what, time.monotonic())
                bar.update(shown, description=what, completed=done, total=of or None)

        yield progress


def as_json(outcome: Outcome) -> str:
    """Return the outcome as one JSON object."""
    tally = outcome.tally
    return json.dumps(
        {
            "deliveries": outcome.deliveries,
            "sent": tally.sent,
            "replayed": tally.replayed,
            "kills": tally.kills,
            "takeovers": tally.takeovers,
            "stale_refused": tally.stale_refused,
            "lost": outcome.damage.lost,
            "doubled": outcome.damage.doubled,
            "seconds": round(tally.seconds, 3),
            "calls": _calls(outcome),
        }
    )


def show(outcome: Outcome) -> None:
    """Print the outcome for people."""
    console = Console(highlight=False)
    tally, damage = outcome.tally, outcome.damage
    rate = outcome.deliveries / tally.seconds if tally.seconds else 0.0
    facts = Table(show_header=False, box=None, padding=(0, 2))
    facts.add_column(justify="right", style="bold")
    facts.add_column()
    for number, what in (
        (f"{outcome.deliveries:,}", "deliveries"),
        (f"{tally.sent:,}", "sendings: 1 to 3 of each, again after faults"),
        (f"{tally.replayed:,}", "duplicates replayed"),
        (f"{tally.kills:,}", "workers killed and replaced"),
        (f"{tally.takeovers:,}", "leases taken over from dead or paused workers"),
        (f"{tally.stale_refused:,}", "stale writes refused"),
        (_mark(damage.lost), "lost updates"),
        (_mark(damage.doubled), "double effects"),
        (f"{rate:,.0f}", f"deliveries a second, over {tally.seconds:.1f} seconds"),
    ):
        facts.add_row(number, what)
    color = "red" if damage.lost or damage.doubled else "green"
    console.print(Group(facts, "", _latencies(outcome)))
    if outcome.temporary_server:
        console.print("\nThe temporary server does not sync to disk; with --dsn, yours does.", style="dim")
    console.print("\n" + verdict(outcome), style=color, markup=False)


def verdict(outcome: Outcome) -> str:
    """Return in a few sentences what came of it, and why."""
    if outcome.without:
        return _verdict_without(outcome)
    if outcome.damage.lost or outcome.damage.doubled:
        return "Deliveries were lost or doubled. This must never happen: please report it."
    if not outcome.deliveries:
        return "There were no deliveries, so there is nothing to see."
    tally = outcome.tally
    harmed = {"killed": tally.kills, "paused past the end of a lease": len(tally.late_answers)}
    words = "Each delivery took effect exactly once"
    happened = [f"{n} {'worker was' if n == 1 else 'workers were'} {what}" for what, n in harmed.items() if n]
    if happened:
        words += f", though {' and '.join(happened)}"
    words += "."
    if missing := [what for what, count in harmed.items() if not count]:
        words += f" This time none was {' or '.join(missing)}: it takes 20 deliveries to see it all."
    if "in_transaction" in tally.takeover_delays:
        words += (
            f" A worker that was paused inside its transaction held its successor up for"
            f" {tally.takeover_delays['in_transaction']:.1f} seconds (the bound is {_BOUND_SECONDS:.1f}),"
            f" and its late commit {_LATE_COMMITS.get(tally.late_answers.get('in_transaction', ''), 'succeeded')}."
        )
    return words


def _verdict_without(outcome: Outcome) -> str:
    lost, doubled = outcome.damage.lost, outcome.damage.doubled
    words = []
    if lost:
        words.append(
            f"{lost:,} lost: a worker that was paused past its lease went on, and wrote over what others had written"
            " meanwhile."
        )
    if doubled:
        words.append(
            f"{doubled:,} doubled: a worker was killed or paused between its write and the marking of its key, or"
            " before both; the delivery was sent again, and took effect twice."
        )
    if not words:
        return "Nothing was lost or doubled this time: there were too few deliveries, or too few faults."
    return " ".join(words) + " Run it again without --without: the same input, the same faults, and no damage."


def _mark(count: int) -> str:
    return f"[red]{count:,}[/red]" if count else "[green]0[/green]"


def _latencies(outcome: Outcome) -> Table:
    table = Table("call", box=None, padding=(0, 2), header_style="bold")
    for heading in ("count", "p50 ms", "p99 ms"):
        table.add_column(heading, justify="right")
    for name, call in _calls(outcome).items():
        table.add_row(name, f"{call['count']:,}", f"{call['p50_ms']:.2f}", f"{call['p99_ms']:.2f}")
    return table


def _calls(outcome: Outcome) -> dict[str, dict[str, Any]]:
    found = {}
    for name in _CALLS:
        if seconds := sorted(outcome.tally.calls.get(name, ())):
            found[name] = {
                "count": len(seconds),
                "p50_ms": _percentile(seconds, 50),
                "p99_ms": _percentile(seconds, 99),
            }
    return found


def _percentile(ordered: list[float], percent: int) -> float:
    """Return the least value that so many percent of them do not exceed, in milliseconds."""
    return round(1_000 * ordered[max(0, -(-len(ordered) * percent // 100) - 1)], 3)
