"""A process of the peers' environment: it opens one peer, and makes rounds of calls as it is told, one JSON line each.

    {"side": a module, "dsn": ..., "threads": 8}    answered {"ready": true} when its lanes are made
    {"round": "get", "calls": 75}                   answered {"us": what a thread waited for a call, in microseconds}
    {"end": true}                                   it closes the peer, and ends

What the peer prints goes to stderr, where an error's traceback goes too: the process ends at the first. Where its stdin
ends before it was told to end, its parent is dead, and it ends at once, in the midst of a round too.
"""

from __future__ import annotations

import json
import os
from importlib import import_module
from queue import SimpleQueue
from threading import Thread
from typing import Any

from tests.benchmarks.rounds import team_of

_ORPHANED = 1


def main() -> None:
    """Serve until it is told to end."""
    answers = os.dup(1)
    os.dup2(2, 1)  # the answers' pipe is ours alone
    messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=_listen, args=(messages,), daemon=True).start()
    charge = messages.get()
    threads: int = charge["threads"]
    names = [f"{threads}-{number}" for number in range(threads)]
    with import_module(charge["side"]).open_lanes(charge["dsn"], names) as lanes, team_of(threads) as team:
        _tell(answers, ready=True)
        while "round" in (message := messages.get()):
            _tell(answers, us=team.round(lanes, message["round"], message["calls"]))


def _listen(messages: SimpleQueue[dict[str, Any]]) -> None:
    # unbuffered: a thread that waits in a buffer of sys.stdin would make an end by an error a fatal one
    with os.fdopen(0, "rb", buffering=0, closefd=False) as lines:
        for line in lines:
            messages.put(message := json.loads(line))
            if "end" in message:
                return
    os._exit(_ORPHANED)


def _tell(answers: int, **message: Any) -> None:
    os.write(answers, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
