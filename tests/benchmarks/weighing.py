"""A process that weighs itself: what is told on stdin says which side it opens between two looks at its memory."""

from __future__ import annotations

import gc
import json
import resource
import sys
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.by_hand import open_by_hand
from tests.benchmarks.ours import open_ours
from tests.benchmarks.rounds import team_of
from tests.benchmarks.sides import CALLS, OURS

__all__ = ["CONNECTIONS"]

CONNECTIONS: Final = 8
"""As many as there are threads."""

_CALLS_EACH = 25  # so many of each call that each connection runs it, as all threads make it at once
_SMAPS = Path("/proc/self/smaps_rollup")


def main() -> None:
    """Weigh, open, call, weigh, and tell."""
    charge: dict[str, str] = json.load(sys.stdin)
    opened: Any = open_ours if charge["side"] == OURS else open_by_hand
    before, measure = _memory()
    with opened(charge["dsn"], charge["schema"], CONNECTIONS) as sides:
        with team_of(CONNECTIONS) as team:
            lanes = team.lanes(sides, charge["name"])
            for call in CALLS:
                team.round(lanes, call, _CALLS_EACH)
            del lanes
        after, _ = _memory()
    sys.stdout.write(json.dumps({"before": before, "after": after, "measure": measure}))


def _memory() -> tuple[int, str]:
    """Return the bytes that this process has for itself, and what they are called; its peak, off Linux."""
    gc.collect()
    if _SMAPS.exists():
        sizes = [line.split() for line in _SMAPS.read_text(encoding="ascii").splitlines()[1:]]
        return 1024 * sum(int(size[1]) for size in sizes if size[0].startswith("Private_")), "USS"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak, "RSS"


if __name__ == "__main__":
    main()
