"""A run as files for the documentation: a page of tables, and pictures, for each part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.report import Report, Table

__all__ = ["FOLDER", "write"]

FOLDER: Final = Path(__file__).parents[2] / "docs" / "benchmarks"
"""Where they belong, in the repository that this file is of."""


def write(reports: Mapping[str, Report], facts: Mapping[str, Any], folder: Path, *, durable: bool) -> None:
    """Write each report as `<part>.md`, and its pictures; files of parts that were not measured are left."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, report in reports.items():
        pictures = report.pictures()
        for file, figure in pictures.items():
            figure.savefig(folder / file)
        asked = f"--{name} --durable" if durable else f"--{name}"
        lines = list(_page(name, asked, report, facts, list(pictures)))
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _page(name: str, asked: str, report: Report, facts: Mapping[str, Any], pictures: list[str]) -> Iterator[str]:
    yield f"# Measured: {name}"
    yield ""
    yield f'Written by `make bench ARGS="{asked} --write"`; [benchmarks](../benchmarks.md) says how it is measured.'
    yield "A figure is of one machine, at one moment."
    for file in pictures:
        yield ""
        yield f"![{name}]({file})"
    for table in report.tables():
        yield from _section(table)
    yield from _section(Table("The machine, and the sessions", ("what", "is"), [(k, str(v)) for k, v in facts.items()]))


def _section(table: Table) -> Iterator[str]:
    yield from ("", f"## {table.title}", "")
    yield _row(table.headings)
    yield _row(["---", *["---:"] * (len(table.headings) - 1)])
    yield from map(_row, table.rows)
    if table.note:
        yield from ("", table.note)


def _row(words: Any) -> str:
    return f"| {' | '.join(str(word).replace('|', '/') for word in words)} |"
