"""The ratios of a comparison as a picture. This module loads matplotlib, and so is imported only where one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from tests.benchmarks.rounds import Result
from tests.benchmarks.sides import BY_HAND, BY_HAND_CODEC, PGBENCH

__all__ = ["ratios"]


class _Look(NamedTuple):
    label: str
    color: str
    marker: str
    offset: float  # from the middle of its row


# Colors of Okabe and Ito, told apart whatever one's eyes are; and shapes, told apart in print.
_LOOKS: Final = {
    BY_HAND: _Look("psycopg by hand, JSON by the standard library", "#0072B2", "o", -0.17),
    BY_HAND_CODEC: _Look("psycopg by hand, JSON by our codec", "#D55E00", "s", 0.17),
    PGBENCH: _Look("pgbench", "#333333", "D", 0.0),
}
_PANEL_INCHES = 3.5
_ROW_INCHES = 0.34
_DPI = 144


def ratios(results: Sequence[Result]) -> Figure:
    """Draw how many times as long as ours each contender took: a panel for each crowd, a row for each call."""
    crowds = list(dict.fromkeys(result.crowd for result in results))
    calls = list(dict.fromkeys(result.call for result in results))
    size = (2.2 + _PANEL_INCHES * len(crowds), 2.5 + _ROW_INCHES * len(calls))
    figure = Figure(figsize=size, dpi=_DPI, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    panels = figure.subplots(1, len(crowds), sharex=True, sharey=True, squeeze=False)[0]
    for panel, crowd in zip(panels, crowds, strict=True):
        _draw(panel, [result for result in results if result.crowd == crowd], calls)
        panel.set_title(str(crowd), fontsize=11)
        panel.set_xlabel("their time / our time\nright of 1, ours is faster", fontsize=10)
    panels[0].set_yticks(range(len(calls)), calls)
    panels[0].set_ylim(len(calls) - 0.5, -0.5)
    panels[0].set_xlim(left=0.0)
    figure.suptitle("The same calls without the library\nmedian of the rounds, and quartiles", fontsize=12)
    marks = {label: mark for panel in panels for mark, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(marks.values(), marks.keys(), loc="outside lower center", ncols=len(crowds), frameon=False)
    return figure


def _draw(panel: Axes, results: Sequence[Result], calls: Sequence[str]) -> None:
    panel.axvline(1.0, color="black", linewidth=1.2, zorder=1)
    for name, look in _LOOKS.items():
        found = [(calls.index(result.call), result.ratio(name)) for result in results if name in result.us]
        if found:
            panel.errorbar(
                [ratio.median for _, ratio in found],
                [row + look.offset for row, _ in found],
                xerr=list(
                    zip(*((ratio.median - ratio.low, ratio.high - ratio.median) for _, ratio in found), strict=True)
                ),
                fmt=look.marker,
                color=look.color,
                label=look.label,
                markersize=6,
                elinewidth=1.6,
                capsize=2.5,
                zorder=3,
            )
    for row in range(1, len(calls), 2):
        panel.axhspan(row - 0.5, row + 0.5, color="#F3F3F3", zorder=0)
    panel.grid(axis="x", color="#CCCCCC", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(left=False)
