"""Signals that ask the demo to end, as an exception, so that everything is cleaned up on the way out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Interrupted", "interruptible"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """The process was asked to end. Not an Exception: nothing on the way catches it."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_status = 128 + signal_number


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Raise Interrupted in the block at the first Ctrl-C, SIGTERM or SIGHUP; ignore those that follow.

    One that was ignored before, as nohup does, stays ignored. Yields what makes even the first one be ignored from then
    on: for the clean-up, which is bounded.
    """
    ended = False

    def end() -> None:
        nonlocal ended
        ended = True

    def receive(number: int, _: object) -> None:
        nonlocal ended
        if not ended:
            ended = True
            raise Interrupted(number)

    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, receive) for number in heeded}
    try:
        yield end
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
