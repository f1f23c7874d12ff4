"""Values as they are stored: JSON or bytes, their canonical form, their fingerprint and their bounds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from types import NoneType
from typing import Any, NamedTuple, TypeAlias, cast

from pydantic_core import from_json

from nl2state.errors import CorruptError, InvalidInputError, PayloadError
from nl2state.limits import Limits

__all__ = [
    "FORMAT",
    "Encoding",
    "Json",
    "Payload",
    "Value",
    "decode",
    "encode",
    "fingerprint",
    "fingerprint_bytes",
    "fingerprint_of",
    "fingerprint_text",
]

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""What JSON can say."""

Value: TypeAlias = "Json | bytes"
"""What a record or an outcome holds."""

FORMAT = 1
"""The version of the stored form. A sealed payload will have another one."""

_INTEGER_DIGITS_MAX = 4_000  # Python itself refuses to print or read longer ones
_INTEGER_MAX = 10**_INTEGER_DIGITS_MAX
_REQUEST_NODES_MAX = 67_108_864  # a request is not stored, so its size is the service's own affair
_FINGERPRINT_PREFIX = "sha256:"

_KINDS = frozenset({str, bool, NoneType, int, float, dict, list})
_TEXT: frozenset[type] = frozenset({str})
_NONE: frozenset[str] = frozenset()
_HARMLESS: dict[frozenset[str], set[str]] = {}  # names that were seen to be none of a credential's
_HARMLESS_MAX = 10_000
_HARMLESS_LENGTH_MAX = 64

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
_make_parts = getattr(json.encoder, "c_make_encoder", None)
# CPython's own, which JSONEncoder makes anew for each value; where it is not to be had, JSONEncoder does
_parts_of = _make_parts and _make_parts(
    None, _ENCODER.default, json.encoder.encode_basestring, None, ":", ",", True, False, False
)


class Encoding(IntEnum):
    """How a payload's bytes are to be read."""

    JSON = 1
    BYTES = 2


_JSON, _BYTES = map(int, Encoding)  # compared with on the way of every read


class Payload(NamedTuple):
    """A value as it is stored."""

    data: bytes
    encoding: Encoding
    format: int = FORMAT


def encode(value: Value, limits: Limits, *, field: str = "value", bytes_max: int | None = None) -> Payload:
    """Return the canonical form of a value: keys sorted, no spaces, UTF-8. Bytes stay as they are.

    Raises PayloadError, before any backend is asked, for what JSON has no word for (NaN, infinities, tuples, keys that
    are not strings), lone surrogates, what is deeper or larger than `limits` allow (or `bytes_max`, where it is given),
    and fields that bear the name of a credential.
    """
    if isinstance(value, bytes):
        payload = Payload(value, Encoding.BYTES)
    else:
        if not _is_harmless(value, limits.payload_depth_max, limits.forbidden_names):
            # each node takes a byte at least
            _Bounds(field, limits.payload_depth_max, limits.payload_bytes_max, limits.forbidden_names).check(value)
        payload = Payload(_canonical(value, field), Encoding.JSON)
    most = limits.payload_bytes_max if bytes_max is None else bytes_max
    if len(payload.data) > most:
        raise PayloadError(f"{field} is larger than {most} bytes", field=field, limit=most)
    return payload


def decode(data: bytes, encoding: int | None, form: int | None) -> Value:
    """Return the value of a stored payload. Raises CorruptError for one that this code cannot have written."""
    if form != FORMAT:
        raise CorruptError("a stored payload is of a form that this code does not know")
    if encoding == _JSON:
        try:
            return cast("Value", from_json(data, allow_inf_nan=False))
        except ValueError:
            pass
        raise CorruptError("a stored payload is not JSON")
    if encoding == _BYTES:
        return data
    raise CorruptError("a stored payload is of an encoding that this code does not know")


def fingerprint(value: Value, limits: Limits | None = None, *, field: str = "request") -> str:
    """Return `sha256:` and 64 hexadecimal digits of a value's canonical form.

    The order of keys does not matter; the order of a list does. A request may hold credentials: it is not stored.
    Raises PayloadError.
    """
    return fingerprint_text(fingerprint_of(value, limits or Limits(), field=field))


def fingerprint_of(value: Value, limits: Limits, *, field: str = "request") -> bytes:
    """Return the 32 bytes of a value's fingerprint. Raises PayloadError."""
    if isinstance(value, bytes):
        digest = hashlib.sha256(b"bytes:" + value)
    else:
        if not _is_harmless(value, limits.payload_depth_max, frozenset()):
            _Bounds(field, limits.payload_depth_max, _REQUEST_NODES_MAX).check(value)
        digest = hashlib.sha256(b"json:" + _canonical(value, field))
    return digest.digest()


def fingerprint_bytes(text: str, *, field: str) -> bytes:
    """Return the 32 bytes of a fingerprint. Raises InvalidInputError where it is not one."""
    digits = text.removeprefix(_FINGERPRINT_PREFIX) if isinstance(text, str) else ""
    if digits == text or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise InvalidInputError(f"{field} must be 'sha256:' and 64 lower-case hexadecimal digits", field=field)
    return bytes.fromhex(digits)


def fingerprint_text(digest: bytes) -> str:
    """Return the fingerprint of 32 bytes: `sha256:` and 64 hexadecimal digits."""
    return _FINGERPRINT_PREFIX + digest.hex()


def _canonical(value: Value, field: str) -> bytes:
    try:
        text = "".join(_parts_of(value, 0)) if _parts_of else _ENCODER.encode(value)
        return text.encode()
    except ValueError as error:
        surrogate = isinstance(error, UnicodeEncodeError)
    raise PayloadError(f"{field} has {'a lone surrogate' if surrogate else 'a number that is not finite'}", field=field)


def _is_harmless(value: object, depth_max: int, forbidden: frozenset[str]) -> bool:
    """Whether a value is certainly within its bounds: small, and of names that were seen before.

    In one sweep, since it is on the way of every write. What it cannot tell is for `_Bounds` to judge.
    """
    harmless = _HARMLESS.get(forbidden, _NONE)
    parts: list[Any] = [[value]]
    for part in parts:  # which grows meanwhile
        if len(parts) > depth_max or len(part) > _HARMLESS_MAX:  # so many lists and objects may be too deep
            return False
        if type(part) is dict and not (
            _TEXT.issuperset(map(type, part)) and (part.keys() <= harmless or not forbidden)
        ):
            return False
        for member in part.values() if type(part) is dict else part:
            kind = type(member)
            if kind is str:
                continue
            if kind is dict or kind is list:
                parts.append(member)
            elif kind not in _KINDS or (kind is int and not -_INTEGER_MAX < member < _INTEGER_MAX):
                return False
    return True


@dataclass(slots=True)
class _Bounds:
    """What a value is measured by. One that holds one list many times over has more nodes than memory has bytes."""

    field: str
    depth_max: int
    nodes_left: int
    forbidden: frozenset[str] = frozenset()

    def check(self, value: object) -> None:
        """Refuse what the encoder would let through or change in silence: the types, the names, the depth, the size.

        Level by level, so that each question is asked of a whole level at once: it is on the way of every write.
        """
        level: list[Any] = [value]
        depth = 0
        while level:
            kinds = set(map(type, level))
            if not kinds <= _KINDS:
                names = ", ".join(sorted(kind.__name__ for kind in kinds - _KINDS))
                raise PayloadError(f"{self.field} has something that is not JSON: {names}", field=self.field)
            if int in kinds:
                integers = [member for member in level if type(member) is int]
                if max(integers) >= _INTEGER_MAX or min(integers) <= -_INTEGER_MAX:
                    raise PayloadError(f"{self.field} has a number that is too long", field=self.field)
            objects = [member for member in level if type(member) is dict] if dict in kinds else []
            lists = [member for member in level if type(member) is list] if list in kinds else []
            depth += 1
            if depth > self.depth_max and (objects or lists):
                most = self.depth_max
                raise PayloadError(f"{self.field} is deeper than {most} levels", field=self.field, limit=most)
            self.nodes_left -= sum(map(len, objects)) + sum(map(len, lists))
            if self.nodes_left < 0:
                raise PayloadError(f"{self.field} has too many parts", field=self.field)
            if objects:
                self._check_names([*chain.from_iterable(objects)])
            level = [*chain.from_iterable(map(dict.values, objects)), *chain.from_iterable(lists)]

    def _check_names(self, names: list[object]) -> None:
        if not _TEXT.issuperset(map(type, names)):
            raise PayloadError(f"{self.field} has an object with a key that is not a string", field=self.field)
        if not self.forbidden:
            return
        harmless = _HARMLESS.setdefault(self.forbidden, set())
        new = cast("set[str]", set(names)) - harmless
        found = self.forbidden & {name.lower().replace("-", "").replace("_", "") for name in new}
        if found:  # said as the limits say it, and not as the value does
            which = ", ".join(sorted(found))
            raise PayloadError(f"{self.field} has a field with the name of a credential: {which}", field=self.field)
        if len(harmless) + len(new) <= _HARMLESS_MAX:
            harmless.update(name for name in new if len(name) <= _HARMLESS_LENGTH_MAX)
