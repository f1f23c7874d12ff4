"""Each call beside the same by hand, and `get` beside pgbench."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from tests.benchmarks import pgbench
from tests.benchmarks.by_hand import open_by_hand
from tests.benchmarks.codec import LIBRARY, STDLIB
from tests.benchmarks.crowds import Crowd
from tests.benchmarks.ours import open_ours
from tests.benchmarks.parts import Ground, Part
from tests.benchmarks.report import Report, Table
from tests.benchmarks.rounds import Contender, Result, TeamOnLanes, compare, team_of
from tests.benchmarks.sides import BY_HAND, BY_HAND_CODEC, OURS, PGBENCH

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PART", "Comparison"]

_ROUNDS = 11
_CODECS: Final = {BY_HAND: STDLIB, BY_HAND_CODEC: LIBRARY}


class Comparison(Report):
    """What each call took, of each contender."""

    def __init__(self, results: Sequence[Result]) -> None:
        self._results = results

    def figures(self) -> dict[str, Any]:
        """Return microseconds by call, crowd and contender, and how many times as long as ours each took."""
        return {"results": [result.figures() for result in self._results]}

    def tables(self) -> list[Table]:
        """Return a table for each crowd, and one of what pgbench did."""
        crowds = dict.fromkeys(result.crowd for result in self._results)
        tables = [self._table(crowd) for crowd in crowds]
        if any(PGBENCH in result.us for result in self._results):
            tables.append(self._beside_pgbench())
        return tables

    def pictures(self) -> dict[str, Figure]:
        """Draw the ratios."""
        from tests.benchmarks.plot import ratios  # noqa: PLC0415  # it loads matplotlib

        return {"comparison.png": ratios(self._results)}

    def _table(self, crowd: Crowd) -> Table:
        results = [result for result in self._results if result.crowd == crowd]
        headings, rows = ["call", "ours us"], [[result.call, _us(result, OURS)] for result in results]
        for name, words in ((BY_HAND, "by hand"), (BY_HAND_CODEC, "our codec")):
            if name in results[0].us:
                headings += [f"{words} us", "/ ours", "quartiles"]
                for row, result in zip(rows, results, strict=True):
                    row += [_us(result, name), *result.ratio(name).words()]
        return Table(str(crowd), headings, rows, 'Above 1, ours is faster. "our codec": by hand too, with our codec.')

    def _beside_pgbench(self) -> Table:
        results = [result for result in self._results if PGBENCH in result.us]
        rows = [
            [str(result.crowd), _rate(result, OURS), _rate(result, PGBENCH), *result.ratio(PGBENCH).words()]
            for result in results
        ]
        headings = ["get", "ours /s", "pgbench /s", "ours / pgbench", "quartiles"]
        return Table("get beside pgbench, prepared", headings, rows, "Calls a second of all threads or clients.")


def _measure(ground: Ground) -> Comparison:
    return Comparison([result for crowd in ground.options.crowds for result in _of_crowd(ground, crowd)])


def _of_crowd(ground: Ground, crowd: Crowd) -> Iterator[Result]:
    options, durable = ground.options, ground.options.durable
    with ExitStack() as resources:
        enter = resources.enter_context
        sides: dict[str, Any] = {
            OURS: enter(
                open_ours(
                    ground.dsn, ground.schemas[OURS], crowd.threads, connections=crowd.connections, durable=durable
                )
            )
        }
        for name in options.baselines:
            schema = ground.schemas[name]
            sides[name] = enter(open_by_hand(ground.dsn, schema, crowd.threads, codec=_CODECS[name], durable=durable))
        team = enter(team_of(crowd.threads))
        ground.progress(f"making records, {crowd}", 0, 0)
        named = f"{crowd.threads}-{crowd.connections}"
        contenders: list[Contender] = [TeamOnLanes(name, team, team.lanes(of, named)) for name, of in sides.items()]
        beside = enter(pgbench.opened(ground.dsn, ground.schemas[PGBENCH], crowd.threads, durable=durable))
        rounds = options.rounds or _ROUNDS
        for call in options.calls_of(crowd):
            others = [beside] if beside is not None and call == pgbench.CALL else []
            ground.progress(f"{call}, {crowd}", 0, rounds)
            for result in compare([*contenders, *others], call, crowd, rounds=rounds, calls=options.calls):
                ground.progress(f"{call}, {crowd}", len(result.us[OURS]), rounds)
            yield result


def _us(result: Result, name: str) -> str:
    return f"{result.median_us(name):,.1f}"


def _rate(result: Result, name: str) -> str:
    return f"{1e6 * result.crowd.threads / result.median_us(name):,.0f}"


PART: Final = Part("comparison", "each call beside psycopg by hand, and get beside pgbench", _measure, usual=True)
