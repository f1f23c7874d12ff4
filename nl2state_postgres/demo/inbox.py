"""The inbox: it sends each delivery to the workers until it is answered for, and harms them as the script says."""

from __future__ import annotations

import heapq
import signal
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from nl2state_postgres.demo.crew import Crew, Worker
from nl2state_postgres.demo.faults import Script
from nl2state_postgres.demo.serving import TTL_SECONDS

__all__ = ["DemoError", "Inbox", "Place", "Tally"]

_WINDOW = 2  # copies that a worker has in hand: the next one is there when it has answered
_COPIES_MAX = 3
_RETRY_SECONDS = 0.1
_TICK_SECONDS = 0.05
_STALLED_SECONDS = 60.0
_CRASHES_MAX = 5
_PAUSE_SECONDS = TTL_SECONDS + 0.1
_OTHERS_MIN = 2


class DemoError(Exception):
    """The demo cannot go on. Its message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a delivery is in the input file, and its record: an account's name and its own."""

    offset: int
    length: int
    record: tuple[str, str]


@dataclass(slots=True)
class Tally:
    """What happened in a run."""

    sent: int = 0
    """Every sending of a delivery to a worker, those to a worker that then died among them."""
    replayed: int = 0
    kills: int = 0
    takeovers: int = 0
    stale_refused: int = 0
    seconds: float = 0.0
    takeover_delays: dict[str, float] = field(default_factory=dict)
    """By the point where a worker was paused: after how many seconds another had taken its lease over."""
    late_answers: dict[str, str] = field(default_factory=dict)
    """By that point: what the worker answered in the end, when it was continued."""
    calls: defaultdict[str, array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    """The seconds of each call that succeeded."""


@dataclass(slots=True)
class _Pause:
    """A paused worker. `others` counts the deliveries that its record had seen by then."""

    worker: Worker
    point: str
    delivery: int
    since: float
    others: int
    done_by_another: bool = False


class Inbox:
    """One run. Deliveries are numbered as in `places`; each is sent one to three times, in a shuffled order.

    A copy is one of these sendings: it is sent again until it is answered "applied" or "replayed".
    """

    def __init__(self, crew: Crew, places: list[Place], seed: int, progress: Callable[[int, int], None]) -> None:
        random = Random(seed)  # noqa: S311  # no secret
        self._copies = [number for number in range(len(places)) for _ in range(random.randint(1, _COPIES_MAX))]
        random.shuffle(self._copies)
        self._crew = crew
        self._places = places
        self._progress = progress
        self._script = Script(len(places))
        self._queue = deque(range(len(self._copies)))
        self._later: list[tuple[float, int]] = []
        self._open = len(self._copies)
        self._answered = bytearray(len(self._copies))
        self._begun = bytearray(len(places))
        self._begun_count = 0
        self._settled = bytearray(len(places))
        self._in_hand = [0] * len(places)
        self._remaining = Counter(place.record for place in places)
        self._applied = Counter[tuple[str, str]]()
        self._pauses: list[_Pause] = []
        self._crashes = 0
        self._last_failure = ""
        self._moved_at = time.monotonic()
        self.tally = Tally()

    def run(self, workers: int) -> Tally:
        """Start the workers, send everything, and return when all is answered. Raises DemoError when it gets stuck."""
        if not self._places:
            return self.tally
        for _ in range(workers):
            self._crew.start()
        started_at = 0.0
        while self._open or any(worker.in_hand for worker in self._crew.workers):
            self._hand_out()
            if self.tally.sent and not started_at:
                started_at = time.monotonic()
            for worker, messages in self._crew.listen(self._patience()):
                if messages is None:
                    self._ended(worker)
                for message in messages or ():
                    self._heard(worker, message)
            self._continue_paused()
            self._progress(len(self._copies) - self._open, len(self._copies))
            if time.monotonic() - self._moved_at > _STALLED_SECONDS:
                raise DemoError(f"nothing moved for {_STALLED_SECONDS:.0f} seconds{self._last_failure}")
        self.tally.seconds = time.monotonic() - started_at
        self._crew.dismiss()
        return self.tally

    def _patience(self) -> float:
        """Return how long to wait for answers before something else is due."""
        if not self._later or len(self._queue):
            return _TICK_SECONDS
        return min(_TICK_SECONDS, max(0.0, self._later[0][0] - time.monotonic()))

    def _hand_out(self) -> None:
        for _ in range(_WINDOW):
            for worker in self._crew.workers:
                if worker.ready and not worker.paused and not worker.leaving and len(worker.in_hand) < _WINDOW:
                    copy = self._next_copy()
                    if copy is None:
                        return
                    self._send(worker, copy)

    def _next_copy(self) -> int | None:
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            copy = heapq.heappop(self._later)[1]
            if not self._answered[copy]:
                return copy
        return self._queue.popleft() if self._queue else None

    def _send(self, worker: Worker, copy: int) -> None:
        delivery = self._copies[copy]
        place = self._places[delivery]
        message: dict[str, Any] = {"copy": copy, "offset": place.offset, "length": place.length}
        if not self._begun[delivery]:
            self._begun[delivery] = True
            self._begun_count += 1
        fault = self._script.next(self._begun_count)
        if fault and worker.fault is None and self._can_be_harmed(delivery):
            self._script.take()
            worker.fault, worker.fault_copy = fault, copy
            message["stop_at"] = fault.point
        worker.in_hand.add(copy)
        self._in_hand[delivery] += 1
        self.tally.sent += 1
        worker.send(message)

    def _can_be_harmed(self, delivery: int) -> bool:
        """Whether a worker would really do this delivery, on a record that others are to work on after it.

        One harm at a time on a record: a successor that is killed too would lengthen the wait that is to be shown.
        """
        record = self._places[delivery].record
        harmed = [pause.delivery for pause in self._pauses]
        harmed += [self._copies[worker.fault_copy] for worker in self._crew.workers if worker.fault is not None]
        if self._settled[delivery] or self._in_hand[delivery] or any(self._places[d].record == record for d in harmed):
            return False
        return self._remaining[record] > _OTHERS_MIN or self._begun_count == len(self._places)

    def _heard(self, worker: Worker, message: dict[str, Any]) -> None:
        if "ready" in message:
            worker.ready = True
            self._moved_at = time.monotonic()
        elif "stopped" in message:
            self._harm(worker)
        else:
            self._note_answer(worker, message)

    def _harm(self, worker: Worker) -> None:
        """Kill or pause a worker that has reached the point of its fault."""
        self._moved_at = time.monotonic()
        fault, worker.fault = worker.fault, None
        if fault is None or fault.action == "kill":
            worker.signal(signal.SIGKILL)  # the end of its answers follows
            return
        worker.paused, worker.paused_at = True, fault.point
        delivery = self._copies[worker.fault_copy]
        applied = self._applied[self._places[delivery].record]
        self._pauses.append(_Pause(worker, fault.point, delivery, time.monotonic(), applied))
        for copy in worker.in_hand:  # a sender that hears nothing sends again
            self._send_again(copy, 0.0)
        self._crew.start()

    def _continue_paused(self) -> None:
        """Let paused workers go on when their lease has run out, and others have done their delivery and more."""
        for pause in list(self._pauses):
            record = self._places[pause.delivery].record
            others_came = self._applied[record] - pause.others >= _OTHERS_MIN or not self._remaining[record]
            if (
                time.monotonic() - pause.since >= _PAUSE_SECONDS
                and pause.done_by_another
                and others_came
                and pause.worker.is_stopped()
            ):
                self._pauses.remove(pause)
                pause.worker.paused = False
                pause.worker.leaving = True
                pause.worker.signal(signal.SIGCONT)

    def _note_answer(self, worker: Worker, answer: dict[str, Any]) -> None:
        copy, kind = answer["copy"], answer["kind"]
        self._let_go(worker, copy)
        if worker.fault is not None and worker.fault_copy == copy:  # it did not get to the point
            self._script.put_back(worker.fault)
            worker.fault = None
        for name, seconds in answer["calls"].items():
            self.tally.calls[name].append(seconds)
        if answer["taken_over"]:
            self._note_takeover(copy)
        if worker.leaving and copy == worker.fault_copy:
            self.tally.late_answers[worker.paused_at] = kind
        self.tally.replayed += kind == "replayed"
        self.tally.stale_refused += kind == "refused"
        if kind in ("applied", "replayed"):
            self._settle(copy, kind)
        else:
            if kind == "failed":
                self._last_failure = f"; the last failure was {answer['code']}"
            self._send_again(copy, max(_RETRY_SECONDS, answer["retry_after_seconds"]))
        if worker.leaving and not worker.in_hand:
            worker.dismiss()

    def _note_takeover(self, copy: int) -> None:
        self.tally.takeovers += 1
        record = self._places[self._copies[copy]].record
        for pause in self._pauses:
            delay = time.monotonic() - pause.since
            # an answer that comes much too early is about a lease that ended before this one was granted
            if self._places[pause.delivery].record == record and delay > TTL_SECONDS / 2:
                self.tally.takeover_delays.setdefault(pause.point, delay)

    def _settle(self, copy: int, kind: str) -> None:
        delivery = self._copies[copy]
        record = self._places[delivery].record
        self._applied[record] += kind == "applied"
        self._moved_at = time.monotonic()
        if not self._settled[delivery]:
            self._settled[delivery] = True
            self._remaining[record] -= 1
            for pause in self._pauses:
                if pause.delivery == delivery:
                    pause.done_by_another = True
        if not self._answered[copy]:
            self._answered[copy] = True
            self._open -= 1

    def _send_again(self, copy: int, delay_seconds: float) -> None:
        if not self._answered[copy]:
            heapq.heappush(self._later, (time.monotonic() + delay_seconds, copy))

    def _let_go(self, worker: Worker, copy: int) -> None:
        worker.in_hand.discard(copy)
        self._in_hand[self._copies[copy]] -= 1

    def _ended(self, worker: Worker) -> None:
        """Replace a worker that is dead, and send again what it had in hand."""
        status = self._crew.remove(worker)
        if worker.fault is not None:
            self._script.put_back(worker.fault)
        self._pauses = [pause for pause in self._pauses if pause.worker is not worker]
        for copy in list(worker.in_hand):
            self._let_go(worker, copy)
            self._send_again(copy, 0.0)
        if status == -signal.SIGKILL:
            self.tally.kills += 1
        elif status != 0 or not worker.leaving:
            self._crashes += 1
            if self._crashes > _CRASHES_MAX:
                raise DemoError(f"its workers fail (exit status {status}): {self._crew.log_tail()}")
        if not worker.leaving and not worker.paused:
            self._crew.start()
