"""How the side by hand writes and reads its values: by the standard library, or as the library itself does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from nl2state.limits import Limits
from nl2state.payload import FORMAT, Encoding, decode, encode, fingerprint_of

__all__ = ["LIBRARY", "STDLIB", "Codec"]


class Codec(NamedTuple):
    """A value to bytes, bytes to a value, and the 32 bytes that tell one request from another."""

    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]
    digest: Callable[[Any], bytes]


# The same JSON as ours: keys sorted, no spaces, UTF-8. Kept, since json.dumps makes a new encoder for each call.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode
_LIMITS = Limits()

STDLIB: Final = Codec(
    dumps=lambda value: _encode(value).encode(),
    loads=lambda data: json.loads(data.decode()),  # told that it is UTF-8, it does not look for itself
    digest=lambda value: hashlib.sha256(_encode(value).encode()).digest(),
)
"""What is at hand, used with care."""

LIBRARY: Final = Codec(
    dumps=lambda value: encode(value, _LIMITS).data,
    loads=lambda data: decode(data, Encoding.JSON, FORMAT),
    digest=lambda value: fingerprint_of(value, _LIMITS),
)
"""The library's own, its checks included: the canonical form, and nothing that JSON has no word for."""
