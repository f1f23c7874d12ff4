"""What names something: ids, keys, scopes."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nl2state import InvalidInputError, TenantScope, derive_key
from nl2state.keys import check_id
from nl2state.pages import end_of_prefix

_PEPPER = "a pepper of the tests"


@pytest.mark.parametrize("name", ["a", "order-17", "ü", "日本", "a b", "x" * 255, "ü" * 127, "a\u2028b"])
def test_a_name_is_taken_as_it_is(name: str) -> None:
    assert check_id("record_id", name, 255) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " a",
        "a ",
        "\ta",
        "a\n",
        "a\x00b",
        "a\x7fb",
        "a\x85b",
        "\ud800",
        "a\udfffb",
        "x" * 256,
        "ü" * 128,
        "x" * 3_000,
        "\u2003a",
        None,
        7,
        b"a",
    ],
)
def test_a_name_that_cannot_be_is_refused_without_its_value(name: str) -> None:
    """Cases 28, 30 and 31: a lone surrogate, 3,000 bytes, or nothing."""
    with pytest.raises(InvalidInputError) as refused:
        check_id("resource", name, 255)
    assert refused.value.field == "resource"
    assert not refused.value.retryable
    assert str(refused.value).startswith("resource ")
    assert not isinstance(name, str) or len(name) < 3 or name not in str(refused.value)
    assert refused.value.__context__ is None


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4), st.lists(st.text(min_size=1), min_size=1, max_size=4))
@example(["team:alice", "profile"], ["team", "alice:profile"])
@example(["a", "bc"], ["ab", "c"])
def test_parts_that_differ_make_scopes_and_keys_that_differ(one: list[str], other: list[str]) -> None:
    """Case 17: a separator within a part makes no other's scope or key."""

    def derived(parts: list[str]) -> tuple[TenantScope, str] | None:
        try:
            return TenantScope.derive(*parts, pepper=_PEPPER), derive_key("pay", *parts)
        except InvalidInputError:
            return None  # a lone surrogate

    first, second = derived(one), derived(other)
    if first and second:
        assert (first[0] == second[0]) is (first[1] == second[1]) is (one == other)


def test_scopes_of_other_peppers_and_the_local_one_are_others() -> None:
    scopes = {
        TenantScope.derive("acme", pepper=_PEPPER),
        TenantScope.derive("acme", pepper=_PEPPER + "!"),
        TenantScope.derive("acme", "acme", pepper=_PEPPER),
        TenantScope.local(),
        TenantScope.from_fingerprint("sha256:" + "0" * 64),
    }
    assert len(scopes) == 5
    assert TenantScope.derive("acme", pepper=_PEPPER.encode()) in scopes
    assert "acme" not in repr(scopes)


@pytest.mark.parametrize("parts", [(), ("",), ("a", ""), (None,), (7,), ("\ud800",), (b"a",)])
def test_a_scope_of_missing_parts_is_refused(parts: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInputError):
        TenantScope.derive(*parts, pepper=_PEPPER)


@pytest.mark.parametrize("pepper", ["salt", b"salt", None, 7])
def test_a_pepper_that_is_short_or_none_is_refused(pepper: str) -> None:
    with pytest.raises(InvalidInputError):
        TenantScope.derive("acme", pepper=pepper)


def test_a_scope_is_made_of_a_uuid() -> None:
    with pytest.raises(InvalidInputError):
        TenantScope("acme")  # type: ignore[arg-type]  # which is the point


def test_a_derived_key_is_a_name_of_its_operation() -> None:
    """Case 6: one request of two operations has two keys."""
    key = derive_key("pay", "order", 17)
    assert check_id("key", key, 255) == key
    assert key.startswith("pay:")
    assert key == derive_key("pay", "order", "17")
    assert (
        len({key, derive_key("refund", "order", 17), derive_key("pay", "order", 18), derive_key("pay", "order17")}) == 4
    )


@pytest.mark.parametrize(
    "parts", [(), (None,), ("",), (None, None), ("", ""), ("user", None), (None, "order"), (True,), (1.5,), ("\ud800",)]
)
def test_a_key_of_missing_parts_is_refused(parts: tuple[str, ...]) -> None:
    """Case 2: two unrelated calls that both lack a field never share a key."""
    with pytest.raises(InvalidInputError) as refused:
        derive_key("pay", *parts)
    assert refused.value.field == "parts"


@given(st.text(), st.text())
def test_a_prefix_ends_where_no_name_has_it_any_more(prefix: str, name: str) -> None:
    """UTF-8's bytes have the order of its code points, as PostgreSQL compares them under COLLATE "C"."""
    for text in (name, prefix + name):
        within = prefix.encode() <= text.encode() < end_of_prefix(prefix).encode()
        assert within is text.encode().startswith(prefix.encode())


@pytest.mark.parametrize("prefix", ["", "a", "\ud7ff", "\U0010ffff", "a\U0010ffff", "\ud7ff\U0010ffff"])
def test_the_end_of_a_prefix_is_above_the_greatest_name_that_has_it(prefix: str) -> None:
    greatest = prefix + "\U0010ffff" * (250 - len(prefix))
    assert greatest < end_of_prefix(prefix)
    assert not end_of_prefix(prefix).startswith(prefix) or prefix.strip("\U0010ffff") == ""
    end_of_prefix(prefix).encode()
