"""A peer that is none, for worker.py to open in our own environment: it has every call, and does nothing."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.peers.lane import PeerLane

FAILS = "fails"
SLEEPS = "sleeps"
_MEET_SECONDS = 10.0
_SLEEP_SECONDS = 100.0
_CALL_SECONDS = 0.001  # so that it is not faster than what a figure is rounded to


@contextmanager
def open_lanes(dsn: str, names: Sequence[str]) -> Iterator[list[PeerLane]]:
    """Yield a lane for each name, whose calls end when one was made for each name. It cannot be opened as "broken"."""
    sys.stdout.write("not an answer\n")
    sys.stdout.flush()
    if "application_name=broken" in dsn:
        raise RuntimeError(f"cannot open {dsn}")
    meeting = threading.Barrier(len(names))
    yield [PeerLane(FakePeer(dsn, meeting), defaultdict(lambda: tuple)) for _ in names]


class FakePeer:
    """A side."""

    def __init__(self, dsn: str, meeting: threading.Barrier) -> None:
        self._dsn = dsn
        self._meeting = meeting

    def __getattr__(self, call: str) -> Callable[[], object]:
        return self._meet

    def fails(self) -> None:
        raise RuntimeError(f"it cannot use {self._dsn}")

    def sleeps(self) -> None:
        """Open the pipe that the DSN names, if it does, which ends with this process, and do not answer."""
        with Path(self._dsn.partition("application_name=")[2] or "/dev/null").open("wb"):
            time.sleep(_SLEEP_SECONDS)

    def _meet(self) -> None:
        self._meeting.wait(_MEET_SECONDS)
        time.sleep(_CALL_SECONDS)
