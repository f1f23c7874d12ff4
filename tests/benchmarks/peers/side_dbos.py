"""dbos: a workflow of one step, which is called in the thread that wants its outcome.

The configuration is its own, but for `pool_pre_ping`, which would cost a round trip for each of its transactions: it is
an option of its `db_engine_kwargs`. Its pool of 20 is larger than what the threads need, for its own threads need some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import sqlalchemy
from dbos import DBOS, DBOSConfig, SetWorkflowID
from psycopg.conninfo import conninfo_to_dict

from tests.benchmarks.peers.lane import PeerLane
from tests.benchmarks.sides import VALUE

__all__ = ["open_lanes"]

_POOL_SIZE = 20  # its default
_OF_ITS_OWN = 4  # how many connections its threads may have at once, beside ours


@contextmanager
def open_lanes(dsn: str, names: Sequence[str]) -> Iterator[list[PeerLane]]:
    """Yield a lane for each name."""
    config = DBOSConfig(
        name="benchmark",
        system_database_url=_url(dsn),
        sys_db_pool_size=max(_POOL_SIZE, len(names) + _OF_ITS_OWN),
        db_engine_kwargs={"pool_pre_ping": False},
        log_level="ERROR",
    )
    DBOS(config=config)
    DBOS.launch()
    try:
        yield [_lane(name) for name in names]
    finally:
        DBOS.destroy()


@DBOS.step()  # type: ignore[untyped-decorator]  # it is typed where it is installed
def _step(value: Any) -> Any:
    return value


@DBOS.workflow()  # type: ignore[untyped-decorator]
def _workflow(value: Any) -> Any:
    return _step(value)


class _Side:
    def workflow(self, key: str) -> object:
        with SetWorkflowID(key):
            return _workflow(VALUE)

    replay = workflow


def _lane(name: str) -> PeerLane:
    side, numbers, key = _Side(), count(), f"key-{name}"
    side.workflow(key)
    return PeerLane(side, {"workflow": lambda: (f"x-{name}-{next(numbers):08}",), "replay": lambda: (key,)})


def _url(dsn: str) -> str:
    """Return the same as the URL that it takes: libpq's parameters that have no place in one are its query."""
    parameters = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    user, password, database = (parameters.pop(name, None) for name in ("user", "password", "dbname"))
    url = sqlalchemy.URL.create("postgresql", username=user, password=password, database=database, query=parameters)
    return str(url.render_as_string(hide_password=False))
