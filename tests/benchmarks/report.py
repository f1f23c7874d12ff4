"""What a run shows: tables for people, or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Printed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Report", "Table", "tell"]

_WIDTH = 100  # where the output is no terminal, which would have a width of its own


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of words under their headings, and a sentence below them."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


class Report:
    """What a part measured: tables and pictures for people, figures for a program."""

    exit_status = 0
    """The command's; a figure is neither right nor wrong, unless something was promised."""

    def figures(self) -> dict[str, Any]:
        """Return it for a program: its keys are no other report's."""
        raise NotImplementedError

    def tables(self) -> list[Table]:
        """Return it for people."""
        raise NotImplementedError

    def pictures(self) -> dict[str, Figure]:
        """Draw it, by the name of each picture; this alone needs matplotlib."""
        return {}


def tell(reports: Sequence[Report], facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print reports, and the facts that their figures depend on."""
    if as_json:
        figures = {name: figure for report in reports for name, figure in report.figures().items()}
        sys.stdout.write(json.dumps({"facts": facts, **figures}) + "\n")
        return
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH
    head = Printed(show_header=False, box=None, padding=(0, 2))
    for name, fact in facts.items():
        head.add_row(name, str(fact))
    console.print(head, style="dim")
    for table in (table for report in reports for table in report.tables()):
        first, *others = table.headings
        printed = Printed(first, box=None, padding=(0, 1), header_style="bold")
        for heading in others:
            printed.add_column(heading, justify="right")
        for row in table.rows:
            printed.add_row(*row)
        console.print(f"\n{table.title}", style="bold")
        console.print(printed)
        if table.note:
            console.print(table.note, style="dim")
    console.print("\ndocs/benchmarks.md says how it is measured.", style="dim")
