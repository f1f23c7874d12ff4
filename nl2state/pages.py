"""Pages: how a long list is read, a bounded number of rows a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

__all__ = ["AFTER_EVERY_NAME", "PAGE_SIZE", "Page", "Span", "end_of_prefix", "page_of"]

T = TypeVar("T")

PAGE_SIZE: Final = 100
"""How many rows a call that lists looks at, unless another limit is given."""

_GREATEST = 0x10FFFF
AFTER_EVERY_NAME: Final = chr(_GREATEST) * 251
"""Greater than every name: it begins with as many of the greatest character as the longest has, and one more."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list, in the order of the names' UTF-8 bytes.

    `after` is where the next page begins: hand it to the same call. None: this is the end. The limit of a call bounds
    the rows that are looked at, those among them that have expired or do not match too: so a page may be short, or
    empty, and have an `after`. What is written meanwhile may be in a later page, and is in none that was read.
    """

    items: tuple[T, ...]
    after: str | None


@dataclass(frozen=True, slots=True)
class Span:
    """The names that a page is looked for among, and how many of them are looked at. For backends."""

    after: str
    """They are greater than this one,"""
    first: str
    """not less than this one,"""
    before: str
    """and less than this one."""
    limit: int


def end_of_prefix(prefix: str) -> str:
    """Return what every name with the prefix is less than, and every greater name without it is not.

    UTF-8's bytes have the order of its code points: the last one that has a successor is replaced by it.
    """
    stem = prefix.rstrip(chr(_GREATEST))
    if not stem:
        return AFTER_EVERY_NAME
    successor = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if successor == 0xD800 else successor)  # no UTF-8 has a surrogate


def page_of(scanned: Sequence[tuple[Any, ...]], limit: int, decode: Callable[..., T | None]) -> Page[T]:
    """Return the page of the rows that were looked at: `limit`, and one more where there are more. For backends.

    A row begins with its name. `decode` is handed its columns, and returns None for one that does not match.
    """
    items = (decode(*row) for row in scanned[:limit])
    after = scanned[limit - 1][0] if len(scanned) > limit else None
    return Page(tuple(item for item in items if item is not None), after)
