"""The sides, the calls that are compared, and what one thread of one side makes them with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final, Protocol

__all__ = [
    "BY_HAND",
    "BY_HAND_CODEC",
    "CALLS",
    "OURS",
    "OWNER",
    "PAGE_SIZE",
    "PGBENCH",
    "SIDES",
    "STATUS",
    "TTL_SECONDS",
    "VALUE",
    "Lane",
    "Side",
]

OURS: Final = "ours"
BY_HAND: Final = "by_hand"
BY_HAND_CODEC: Final = "by_hand_codec"
PGBENCH: Final = "pgbench"
SIDES: Final = (OURS, BY_HAND, BY_HAND_CODEC, PGBENCH)
"""By their names in JSON. Each has a schema of its own."""

PAGE_SIZE: Final = 100
TTL_SECONDS: Final = 3_600.0  # nothing expires while it runs
OWNER: Final = "worker-1"
STATUS: Final = "created"

VALUE: Final[dict[str, Any]] = {
    "order": "order-2024-000017",
    "currency": "EUR",
    "created": "2024-11-05T09:12:44.318Z",
    "paid": True,
    "coupon": None,
    "account": {"id": 6811672, "name": "Ærø Fisk & Søn", "country": "DK", "since": 2019, "trusted": True},
    "lines": [
        {
            "sku": f"SKU-{4711 + number}",
            "title": title,
            "quantity": number + 1,
            "price": 12.5 * (number + 1),
            "tax": 0.25,
        }
        for number, title in enumerate(("Smoked herring", "Rye bread", "Elderflower cordial", "Mustard, coarse"))
    ],
    "shipping": {"carrier": "post", "days": [1, 2, 3], "address": ["Havnegade 4", "5970 Ærøskøbing"], "weight": 3.275},
    "history": [
        {"at": "2024-11-05T09:12:44.318Z", "to": "created"},
        {"at": "2024-11-05T09:13:02.007Z", "to": "paid"},
        {"at": "2024-11-06T06:40:00.000Z", "to": "packed"},
    ],
    "note": "Leave it with the neighbour at number 6, who is at home in the afternoon.",
}
"""A JSON object of about 900 bytes: what is written, requested and answered."""

_RECORDS = 200  # of each thread; more than a page, so that each page is full


class Side(Protocol):
    """One thread's way to the calls. What it calls a fence and an attempt is its own affair.

    A call that finds what it should not raises: a benchmark of refusals would be another one.
    """

    def get(self, record_id: str) -> object: ...

    def get_revision(self, record_id: str) -> object: ...

    def list(self, after: str) -> object: ...

    def create(self, record_id: str) -> object: ...

    def update(self, record_id: str, revision: int) -> object: ...

    def update_fenced(self, record_id: str, revision: int, fence: Any) -> object: ...

    def put(self, record_id: str) -> object: ...

    def delete(self, record_id: str, revision: int) -> object: ...

    def acquire(self, resource: str) -> Any: ...

    def renew(self, fence: Any) -> object: ...

    def release(self, fence: Any) -> object: ...

    def inspect(self, resource: str) -> object: ...

    def reserve(self, key: str) -> Any: ...

    def replay(self, key: str) -> object: ...

    def complete(self, attempt: Any) -> object: ...

    def get_key(self, key: str) -> object: ...

    def transaction(self, record_id: str, revision: int, attempt: Any, fence: Any) -> object: ...


class Lane:
    """What one thread of one side works on: its own records, leases and keys, so that no call waits for another's."""

    def __init__(self, side: Side, name: str) -> None:
        self.side = side
        self._names = (f"x-{name}-{number:08}" for number in count())  # after every record: no page has them
        self._records = [f"record-{name}-{number:04}" for number in range(_RECORDS)]
        self._revisions = dict.fromkeys(self._records, 1)
        self._turns = count()
        for record_id in self._records:
            side.create(record_id)
        self._resource = f"resource-{name}"
        self._fence = side.acquire(self._resource)
        self._key = f"key-{name}"
        side.complete(side.reserve(self._key))

    def arguments(self, call: str) -> tuple[Any, ...]:
        """Return the arguments of the next such call, which are made in their order. What it is to find is made now."""
        return _ARGUMENTS[call](self)

    def _record(self) -> tuple[str]:
        return (self._records[next(self._turns) % _RECORDS],)

    def _page(self) -> tuple[str]:
        return (self._records[next(self._turns) % (_RECORDS - PAGE_SIZE)],)

    def _written(self) -> tuple[str, int]:
        """Return a record, and the revision that it will have when it is its turn."""
        (record_id,) = self._record()
        self._revisions[record_id] += 1
        return record_id, self._revisions[record_id] - 1

    def _fresh(self) -> tuple[str]:
        return (next(self._names),)

    def _created(self) -> tuple[str, int]:
        (record_id,) = self._fresh()
        self.side.create(record_id)
        return record_id, 1

    def _acquired(self) -> tuple[Any]:
        return (self.side.acquire(*self._fresh()),)

    def _reserved(self) -> tuple[Any]:
        return (self.side.reserve(*self._fresh()),)


_ARGUMENTS: Final[dict[str, Callable[[Lane], tuple[Any, ...]]]] = {
    "get": Lane._record,
    "get_revision": Lane._record,
    "list": Lane._page,
    "create": Lane._fresh,
    "update": Lane._written,
    "update_fenced": lambda lane: (*lane._written(), lane._fence),
    "put": lambda lane: lane._written()[:1],
    "delete": Lane._created,
    "acquire": Lane._fresh,
    "renew": lambda lane: (lane._fence,),
    "release": Lane._acquired,
    "inspect": lambda lane: (lane._resource,),
    "reserve": Lane._fresh,
    "replay": lambda lane: (lane._key,),
    "complete": Lane._reserved,
    "get_key": lambda lane: (lane._key,),
    "transaction": lambda lane: (*lane._written(), *lane._reserved(), lane._fence),
}

CALLS: Final = tuple(_ARGUMENTS)
"""The methods of Side, in the order in which they are measured."""
