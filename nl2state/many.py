"""Calls for many items at once: how many they take, and what became of each item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar, overload

from nl2state.errors import InvalidInputError, PayloadError, StoreError
from nl2state.limits import Limits

__all__ = ["Outcomes", "check_atomic", "check_bytes", "checked_items"]

T = TypeVar("T")
C = TypeVar("C")


class Outcomes(Sequence[T], Generic[T]):
    """What became of each item of a call for many, in the order in which the items were given.

    It is a sequence of what the call for one item returns. To take an item that was refused, by its index or in a loop,
    raises its refusal, so that none is overlooked; `refusals` has them by index, and is empty for a call that was
    atomic. Each has the item's `index`. Once an item of a call that is not atomic was done, whatever keeps the others
    from it, be it that the server is gone, is their refusal: the call would else raise, as if nothing had been done.
    """

    __slots__ = ("_refusals", "_results")

    def __init__(self, results: Iterable[T | StoreError], *, atomic: bool = False) -> None:
        """Keep the results and refusals of a call in their order. An atomic call's first refusal is raised."""
        self._results = tuple(results)
        refused = {index: result for index, result in enumerate(self._results) if isinstance(result, StoreError)}
        if atomic and refused:
            raise refused[min(refused)]
        self._refusals = refused

    @property
    def refusals(self) -> Mapping[int, StoreError]:
        """The refusals, by the indices of their items."""
        return MappingProxyType(self._refusals)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self._results))))
        result = self._results[index]
        if isinstance(result, StoreError):
            raise result.again()
        return result

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"<{len(self)} outcomes, {len(self.refusals)} of them refusals>"


def checked_items(
    items: Sequence[Any],
    kind: type[Any],
    check: Callable[[Any], C],
    name: Callable[[C], str] | None,
    limits: Limits,
    *,
    field: str = "items",
) -> list[C]:
    """Return what `check` makes of each item of the argument `field`. For backends.

    Raises InvalidInputError for what is no list or tuple of this kind, for more than `items_max`, and, where there is a
    `name`, for two of one name; and what `check` raises, with the item's index.
    """
    if not isinstance(items, (list, tuple)):
        raise InvalidInputError(f"{field} is not a list", field=field)
    if len(items) > limits.items_max:
        raise InvalidInputError(f"{field} has more than {limits.items_max} items", field=field, limit=limits.items_max)
    checked: list[C] = []
    names: set[str] = set()
    for index, item in enumerate(items):
        try:
            if not isinstance(item, kind):
                raise InvalidInputError(f"{field} has an item that is not a {kind.__name__}", field=field)
            checked.append(check(item))
            if name is not None and name(checked[-1]) in names:
                raise InvalidInputError(f"{field} has two items of one name", field=field)
        except StoreError as error:
            error.index = index
            raise
        if name is not None:
            names.add(name(checked[-1]))
    return checked


def check_atomic(atomic: bool) -> None:
    """Raise InvalidInputError for what is neither True nor False: None could be meant as either. For backends."""
    if type(atomic) is not bool:
        raise InvalidInputError("atomic is not True or False", field="atomic")


def check_bytes(sizes: Iterable[int], limits: Limits) -> None:
    """Raise PayloadError where the values of a call are larger together than `items_bytes_max`. For backends."""
    most = limits.items_bytes_max
    if sum(sizes) > most:
        raise PayloadError(f"the values are larger than {most} bytes together", field="items", limit=most)
