"""What the calls of a tenant are bound to: the ids that their writes are known by."""

from __future__ import annotations

import ctypes
import os

from nl2state_postgres.binding import new_write_id


def test_no_two_processes_know_their_writes_by_the_same_ids() -> None:
    """P7: each would take the other's attempt for its own. A server that forks in C need not call Python's hooks."""
    reading, writing = os.pipe()
    child = ctypes.PyDLL(None).fork()
    if not child:
        os.write(writing, new_write_id())
        os._exit(0)
    os.waitpid(child, 0)
    apart = int.from_bytes(os.read(reading, 16), "big") - int.from_bytes(new_write_id(), "big")
    for end in (reading, writing):
        os.close(end)
    assert abs(apart) > 1_000
