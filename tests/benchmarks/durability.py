"""Whether commits wait for the disk.

The library's own sessions always let them, and have no option that says otherwise. Here that one setting is changed in
the text of the statement that sets a session up, for the stores and connections that are opened in a block: so both
sides run the same changed statement, and everything else is the library as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import resources
from typing import Final
from unittest.mock import patch

from nl2state_postgres.catalog import Catalog

__all__ = ["sessions"]

_DURABLE: Final = "set_config('synchronous_commit', 'on', false)"
_NOT_DURABLE: Final = "set_config('synchronous_commit', 'off', false)"


@contextmanager
def sessions(*, durable: bool) -> Iterator[None]:
    """Let the commits of what is opened in the block wait for the disk, or not."""
    if durable:
        yield
    else:
        with patch.object(Catalog, "load", _load):
            yield


@lru_cache
def _load(*, schema: str, clock: str, reads_epoch: bool = False) -> Catalog:
    if reads_epoch:
        raise NotImplementedError("sessions that the library does not set up")
    files = (entry for entry in (resources.files("nl2state_postgres") / "sql").iterdir() if entry.name.endswith(".sql"))
    texts = {entry.name: entry.read_text(encoding="utf-8") for entry in files}
    if sum(text.count(_DURABLE) for text in texts.values()) != 1:
        raise NotImplementedError("the library's sessions are set up in another way now")
    changed = {name: text.replace(_DURABLE, _NOT_DURABLE) for name, text in texts.items()}
    return Catalog(changed, schema=schema, clock=clock)
