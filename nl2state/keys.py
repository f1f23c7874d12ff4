"""What a record id, a resource, a key, an owner and a status may be, and keys made from parts."""

from __future__ import annotations

import hashlib
import unicodedata

from nl2state.errors import InvalidInputError
from nl2state.scope import length_prefixed

__all__ = ["check_id", "check_prefix", "derive_key"]

_OPERATION_BYTES_MAX = 128


def check_id(field: str, value: str, bytes_max: int) -> str:
    """Return `value` if it can name something.

    That is 1 to `bytes_max` bytes of UTF-8 without control characters, lone surrogates, or white space at either end.
    Names are compared byte by byte and never normalised.

    Raises InvalidInputError, which names the field and not the value.
    """
    if type(value) is str and value.isascii() and value.isprintable() and 0 < len(value) <= bytes_max:
        if value[0] != " " != value[-1]:  # the only white space that is printable ASCII
            return value
    else:
        check_prefix(field, value, bytes_max)
    if not value:
        raise InvalidInputError(f"{field} is empty", field=field)
    if value[0].isspace() or value[-1].isspace():
        raise InvalidInputError(f"{field} has white space at an end", field=field)
    return value


def check_prefix(field: str, value: str, bytes_max: int) -> str:
    """Return `value` if a name can begin with it: it may be empty, or end in white space. See check_id."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{field} must be a string", field=field)
    size = len(value) if value.isascii() and value.isprintable() else _size_of_unicode(field, value)
    if size > bytes_max:
        raise InvalidInputError(f"{field} is longer than {bytes_max} bytes", field=field, limit=bytes_max)
    return value


def _size_of_unicode(field: str, value: str) -> int:
    categories = set(map(unicodedata.category, value))
    if "Cs" in categories:
        raise InvalidInputError(f"{field} has a lone surrogate", field=field)
    if "Cc" in categories:
        raise InvalidInputError(f"{field} has a control character", field=field)
    return len(value.encode())


def derive_key(operation: str, *parts: str | int) -> str:
    """Make an idempotency key of an operation and the parts that make a request one and the same.

    The parts are length-prefixed and hashed, so that `("a", "bc")` and `("ab", "c")` differ, and keys of different
    operations never meet. A number and its text are the same part. A missing part (None, "") is refused: two requests
    that both lack it would share a key. Returns `operation:` and 64 hexadecimal digits. Raises InvalidInputError.
    """
    check_id("operation", operation, _OPERATION_BYTES_MAX)
    if not parts:
        raise InvalidInputError("a key needs at least one part", field="parts")
    texts = tuple(str(part) if isinstance(part, int) and not isinstance(part, bool) else part for part in parts)
    digest = hashlib.sha256(length_prefixed("parts", (operation, *texts)))  # type: ignore[arg-type]  # refuses what is no text
    return f"{operation}:{digest.hexdigest()}"
