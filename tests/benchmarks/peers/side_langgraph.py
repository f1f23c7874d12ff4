"""langgraph-checkpoint-postgres: a checkpoint with one channel, which holds the value.

A saver has a mutex for all of its calls, so each thread has a saver, as `from_conn_string` makes it: a connection of
its own, which commits by itself and prepares each statement at once. Nothing else that it offers was faster with eight:
one saver or several on a pool, its pipeline mode, its asynchronous saver.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import count
from typing import Any

os.environ["LANGGRAPH_STRICT_MSGPACK"] = "true"  # as its README asks; it reads it when it is imported

from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.postgres import PostgresSaver

from tests.benchmarks.peers.lane import RECORDS, PeerLane
from tests.benchmarks.sides import VALUE

__all__ = ["open_lanes"]

_CHANNEL = "value"
_FORMAT = 4  # what its README writes: get_tuple looks for the sends of one that is older, in a second statement


@contextmanager
def open_lanes(dsn: str, names: Sequence[str]) -> Iterator[list[PeerLane]]:
    """Yield a lane for each name."""
    with ExitStack() as savers:
        opened = [savers.enter_context(PostgresSaver.from_conn_string(dsn)) for _ in names]
        opened[0].setup()
        yield [_Arguments(saver, name).lane for saver, name in zip(opened, names, strict=True)]


class _Side:
    def __init__(self, saver: Any) -> None:
        self._saver = saver

    def put(self, config: dict[str, Any], checkpoint: dict[str, Any], versions: dict[str, Any]) -> object:
        return self._saver.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, versions)

    def get_tuple(self, config: dict[str, Any]) -> object:
        if (found := self._saver.get_tuple(config)) is None:
            raise LookupError("the thread has no checkpoint")
        return found


class _Arguments:
    """The threads of a lane, in langgraph's sense of the word, and the newest checkpoint of each."""

    def __init__(self, saver: Any, name: str) -> None:
        side = _Side(saver)
        self._saver = saver
        self._turns = count()
        self._threads = [f"record-{name}-{number:04}" for number in range(RECORDS)]
        self._newest: dict[str, str] = {}
        self._versions: dict[str, Any] = {}
        for _ in self._threads:
            side.put(*self._put())
        self.lane = PeerLane(side, {"put": self._put, "get_tuple": self._get_tuple})

    def _thread(self) -> str:
        return self._threads[next(self._turns) % RECORDS]

    def _put(self) -> tuple[Any, ...]:
        """Return the next checkpoint of a thread, as a graph that was resumed would make it."""
        thread = self._thread()
        self._versions[thread] = self._saver.get_next_version(self._versions.get(thread), None)
        versions = {_CHANNEL: self._versions[thread]}
        checkpoint: dict[str, Any] = {
            "v": _FORMAT,
            "id": str(uuid6()),
            "ts": datetime.now(UTC).isoformat(),
            "channel_values": {_CHANNEL: VALUE},
            "channel_versions": versions,
            "versions_seen": {},
        }
        config = {"thread_id": thread, "checkpoint_ns": ""}
        if thread in self._newest:
            config["checkpoint_id"] = self._newest[thread]
        self._newest[thread] = checkpoint["id"]
        return {"configurable": config}, checkpoint, versions

    def _get_tuple(self) -> tuple[Any, ...]:
        return ({"configurable": {"thread_id": self._thread()}},)
