"""What one thread of a peer makes its calls with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from tests.benchmarks.sides import VALUE

__all__ = ["RECORDS", "VALUE_BYTES", "PeerLane"]

RECORDS: Final = 200
"""Of each thread, as many as a thread of ours has."""

VALUE_BYTES: Final = len(json.dumps(VALUE, separators=(",", ":"), ensure_ascii=False).encode())
"""How large the value is as we store it."""


class PeerLane:
    """A side, and the arguments of its next call."""

    def __init__(self, side: object, arguments: Mapping[str, Callable[[], tuple[Any, ...]]]) -> None:
        self.side = side
        self._arguments = arguments

    def arguments(self, call: str) -> tuple[Any, ...]:
        """Return the arguments of the next such call."""
        return self._arguments[call]()
