"""What a value may be, its canonical form, and its fingerprint."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nl2state import CorruptError, InvalidInputError, Json, Limits, PayloadError, Value, fingerprint
from nl2state.payload import _HARMLESS, Encoding, Payload, _Bounds, _is_harmless, decode, encode, fingerprint_bytes

_LIMITS = Limits()


def _deep(levels: int) -> Json:
    value: Json = 1
    for _ in range(levels):
        value = [value]
    return value


class _Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -0.0,
        1e308,
        "",
        "\u0000",
        "ü\U0001f600",
        [],
        {},
        {"": {}},
        2**53 + 1,
        -(2**200),
        b"",
        b"\x00",
        {"a": [1, {"b": None}]},
        _deep(64),
    ],
)
def test_a_value_survives_unchanged(value: Value) -> None:
    """Cases 26 and 29: a zero and large numbers, among others."""
    again = decode(*encode(value, _LIMITS))
    assert again == value
    assert type(again) is type(value)


def test_the_canonical_form_is_sorted_and_has_no_spaces() -> None:
    assert encode({"b": [1, 2.5], "a": "ü"}, _LIMITS) == Payload('{"a":"ü","b":[1,2.5]}'.encode(), Encoding.JSON)
    assert encode(b"raw", _LIMITS) == Payload(b"raw", Encoding.BYTES)


class _Kind(str, enum.Enum):  # noqa: UP042  # a StrEnum is made otherwise, and is refused as well
    A = "a"


class _List(list[Any]):
    __slots__ = ()


class _Object(dict[str, Any]):
    __slots__ = ()


class _Integer(int):
    __slots__ = ()


def _cycle() -> Any:
    value: dict[str, Any] = {"a": []}
    value["a"].append(value)
    return value


_FEW = Limits(payload_depth_max=4, forbidden_names=frozenset({"secret"}))
_NAMES = st.sampled_from(["a", "b", "Secret", "sec-ret", "secrets", "\ud800", _Text("a"), _Kind.A, 1, None, True, b"a"])
_LEAVES = st.one_of(
    st.sampled_from(
        [None, True, 1, 1.5, "a", "\udfff", float("nan"), float("inf"), 10**4_000, 1 - 10**4_000, -(10**4_000)]
    ),
    st.sampled_from([_Text("a"), _Kind.A, _Integer(1), _List(), _Object(), (), {1}, b"a", object()]),
)
_SOMETHING = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3), max_leaves=12
)


@given(_SOMETHING)
@example([{"a": 1}, {_Text("a"): 1}])
@example({"a": {_Kind.A: 1}})
@example([[[[]]]])
@example([[[[[]]]]])
@example({"a": -(10**4_000)})
@example(_cycle())
def test_what_is_told_to_be_harmless_in_one_sweep_is_within_its_bounds(value: Any) -> None:
    """And what is within its bounds is what the slow way lets through, whatever else is equal to it."""
    encode({"a": {"b": {"secrets": 1}}}, _FEW)  # so that these names are known
    bounds = _Bounds("value", _FEW.payload_depth_max, 1_000, _FEW.forbidden_names)
    if _is_harmless(value, _FEW.payload_depth_max, _FEW.forbidden_names):
        bounds.check(value)
        assert _is_plain(value, _FEW.payload_depth_max)
    else:
        try:
            bounds.check(value)
        except PayloadError:
            return
        assert _is_plain(value, _FEW.payload_depth_max)


def _is_plain(value: Any, levels: int) -> bool:
    """Whether it is of JSON's own types alone, and not deeper than that: the same, one by one."""
    if type(value) is dict:
        named = all(type(name) is str and name.lower().replace("-", "") != "secret" for name in value)
        return levels > 0 and named and all(_is_plain(each, levels - 1) for each in value.values())
    if type(value) is list:
        return levels > 0 and all(_is_plain(each, levels - 1) for each in value)
    return value is None or type(value) in {str, bool, float} or (type(value) is int and abs(value) < 10**4_000)


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        [-float("inf")],
        "\ud800",
        {"\udfff": 1},
        {1: 1},
        {None: 1},
        {_Text("a"): 1},
        {"a": {_Text("a"): 1}},
        [{"a": 1}, {_Text("a"): 1}],
        (1, 2),
        {1, 2},
        object(),
        bytearray(b""),
        _Text("a"),
        10**4_000,
        _deep(65),
        "x" * 1_048_575,
        b"x" * 1_048_577,
        {"password": 1},
        [{"nested": {"Api-Key": None}}],
        {"CLIENT_SECRET": ""},
    ],
)
def test_what_is_no_value_is_refused_by_the_name_of_its_field(value: Value) -> None:
    """Cases 27 and 28: NaN, infinities and lone surrogates, among others."""
    with pytest.raises(PayloadError) as refused:
        encode(value, _LIMITS, field="outcome")
    assert refused.value.field == "outcome"
    assert isinstance(refused.value, ValueError)
    assert refused.value.__context__ is None


def test_a_refusal_says_which_type_or_which_credential_s_name_it_met() -> None:
    with pytest.raises(PayloadError, match=r"not JSON: datetime, tuple$"):
        encode([(1,), datetime.now(UTC)], _LIMITS)  # type: ignore[list-item]  # which is the point
    with pytest.raises(PayloadError, match=r"a credential: apikey$"):
        encode({"x": [{"API-Key": "k"}]}, _LIMITS)


def test_a_value_that_holds_one_list_many_times_is_refused_soon() -> None:
    value: Json = [1]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(PayloadError):
        encode(value, _LIMITS)


def test_names_that_only_resemble_a_credential_s_are_fine() -> None:
    encode({"token": 1, "key": 2, "password_hint": 3, "secretary": 4, "passwords": 5}, _LIMITS)
    encode({"password": 1}, Limits(forbidden_names=frozenset()))


def test_a_fingerprint_is_of_the_value_and_not_of_its_order() -> None:
    """Cases 1 and 29: the order of names is none of it, and 2**53 + 1 is not 2**53."""
    assert fingerprint({"a": 1, "b": {"x": 1, "y": 2}}) == fingerprint({"b": {"y": 2, "x": 1}, "a": 1})
    different: list[Value] = [[1, 2], [2, 1], 1, 1.0, "1", True, None, "null", b"null", 2**53, 2**53 + 1, [], {}, ""]
    assert len({fingerprint(value) for value in different}) == len(different)
    assert len(fingerprint_bytes(fingerprint(None), field="f")) == 32


def test_a_request_may_hold_credentials_and_is_not_stored() -> None:
    assert fingerprint({"password": "x"}).startswith("sha256:")


@pytest.mark.parametrize("text", ["", "sha256:", "sha256:" + "0" * 63, "sha256:" + "G" * 64, "0" * 64, None, b"x"])
def test_a_fingerprint_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        fingerprint_bytes(text, field="request_fingerprint")


@pytest.mark.parametrize(
    "payload",
    [
        Payload(b"{", Encoding.JSON),
        Payload(b"\xff", Encoding.JSON),
        Payload(b"1", Encoding.JSON, 2),
        (b"1", 3, 1),
        (b"1", None, None),
    ],
)
def test_a_damaged_payload_is_told_without_its_bytes(payload: tuple[bytes, int, int]) -> None:
    with pytest.raises(CorruptError) as raised:
        decode(*payload)
    assert raised.value.__context__ is None


def test_names_of_any_size_and_number_are_not_kept_in_memory() -> None:
    """P11: each write may bring other ones, and nobody knows what they say; a request may hold credentials."""
    for number in range(3):
        encode({f"{number}{'x' * 500_000}": 1}, Limits())
        encode({f"{number} {other}": 1 for other in range(60_000)}, Limits())
        fingerprint({f"asked for alone {number}": 1})
    assert sum(len(names) for names in _HARMLESS.values()) < 20_000
    assert sum(len(name) for names in _HARMLESS.values() for name in names) < 2_000_000
    assert not any("asked for alone" in name for names in _HARMLESS.values() for name in names)
