"""What a run shows: tables for people, or one JSON object."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from nl2state_postgres.demo.serving import TRANSACTION_IDLE_SECONDS, TTL_SECONDS
from tests.benchmarks.delays import BOUND_SECONDS, Delay
from tests.benchmarks.rounds import Result

__all__ = ["Comparison", "Delays", "Report", "tell"]


class Report(Protocol):
    """What was measured."""

    @property
    def exit_status(self) -> int:
        """The command's."""
        ...

    def figures(self) -> dict[str, Any]:
        """Return it for a program."""
        ...

    def show(self, console: Console) -> None:
        """Print it for people."""
        ...


def tell(report: Report, facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a report, and the facts that its figures depend on."""
    console = Console(highlight=False)
    if as_json:
        console.file.write(json.dumps({"facts": facts, **report.figures()}) + "\n")
        return
    table = Table(show_header=False, box=None, padding=(0, 2))
    for name, fact in facts.items():
        table.add_row(name, str(fact))
    console.print(table, style="dim")
    report.show(console)


class Comparison:
    """What each call took on both sides."""

    exit_status = 0  # a figure is neither right nor wrong

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = results

    def figures(self) -> dict[str, Any]:
        """Return microseconds, and by hand / ours, by call and threads."""
        return {"results": [_figures(result) for result in self._results]}

    def show(self, console: Console) -> None:
        """Print a table for each number of threads."""
        for threads in sorted({result.threads for result in self._results}):
            table = _table("call", "ours us", "by hand us", "by hand / ours", "quartiles")
            for figures in map(_figures, self._results):
                if figures["threads"] == threads:
                    low, high = figures["ratio_quartiles"]
                    row = (f"{figures['ours_us']:,.1f}", f"{figures['by_hand_us']:,.1f}", f"{figures['ratio']:.2f}")
                    table.add_row(figures["call"], *row, f"{low:.2f} to {high:.2f}")
            console.print(f"\n[bold]{threads} thread{'' if threads == 1 else 's'}[/bold]")
            console.print(table)
        console.print("\nAbove 1, ours is faster. docs/benchmarks.md says how it is measured.", style="dim")


class Delays:
    """How long each harm to a holder delayed its successor."""

    def __init__(self, delays: Sequence[Delay]) -> None:
        self._delays = delays
        kept = all(delay.within_bound and delay.late_writes_refused is not False for delay in delays)
        self.exit_status = 0 if kept else 1

    def figures(self) -> dict[str, Any]:
        """Return the delays by harm, and the bound."""
        return {
            "ttl_seconds": TTL_SECONDS,
            "transaction_idle_seconds": TRANSACTION_IDLE_SECONDS,
            "bound_seconds": BOUND_SECONDS,
            "delays": [
                {
                    "harm": str(delay.harm),
                    "median_seconds": round(delay.median_seconds, 3),
                    "max_seconds": round(max(delay.seconds), 3),
                    "within_bound": delay.within_bound,
                    "late_writes_refused": delay.late_writes_refused,
                    "late": sorted(set(delay.late)),
                }
                for delay in self._delays
            ],
        }

    def show(self, console: Console) -> None:
        """Print a table, and what it says of P13."""
        table = _table("holder", "median s", "max s", "late write refused as")
        for delay in self._delays:
            late = {True: ", ".join(sorted(set(delay.late))), False: "IT WAS MADE", None: "there was none"}
            row = (f"{delay.median_seconds:.2f}", f"{max(delay.seconds):.2f}", late[delay.late_writes_refused])
            table.add_row(str(delay.harm), *row)
        console.print(f"\n[bold]the delay of its successor, {len(self._delays[0].seconds)} of each[/bold]")
        console.print(table)
        held = "held" if all(delay.within_bound for delay in self._delays) else "DID NOT HOLD"
        console.print(
            f"\nP13 {held}: at most {BOUND_SECONDS} s, which is the TTL of {TTL_SECONDS} s"
            f" and the bound of {TRANSACTION_IDLE_SECONDS} s on an open transaction."
        )


def _table(first: str, *headings: str) -> Table:
    table = Table(first, box=None, padding=(0, 2), header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _figures(result: Result) -> dict[str, Any]:
    return {
        "call": result.call,
        "threads": result.threads,
        "ours_us": round(statistics.median(result.ours_us), 1),
        "by_hand_us": round(statistics.median(result.by_hand_us), 1),
        "ratio": round(result.ratio, 3),
        "ratio_quartiles": [round(ratio, 3) for ratio in result.spread],
    }
