"""The pages say all that the contract has: its calls, its errors, its settings, with their own values."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from nl2state import Held, Limits, StateView, Store, System, Tenant, Transaction, errors
from nl2state_postgres import Settings
from tests.architecture.source import capabilities, is_public, methods, none
from tests.docs.pages import text_of

_PAGES = {
    **{f"docs/{noun}.md": (protocol,) for noun, protocol in capabilities().items()},
    "docs/transactions.md": (Transaction,),
    "docs/operations.md": (System,),
    "docs/architecture.md": (Store, Tenant),
}
_CLASSES = {"docs/states.md": StateView, "docs/leases.md": Held}


@pytest.mark.parametrize("page", _PAGES)
def test_each_call_of_a_protocol_is_on_the_page_of_its_noun(page: str) -> None:
    none(f"{page}: {name}" for kind in _PAGES[page] for name in methods(kind) if not _is_told(name, text_of(page)))


@pytest.mark.parametrize("page", _CLASSES)
def test_each_call_of_a_class_is_on_the_page_of_its_noun(page: str) -> None:
    names = filter(is_public, vars(_CLASSES[page]))
    none(f"{page}: {name}" for name in names if not _is_told(name, text_of(page)))


def test_each_error_is_told_with_its_code_and_whether_to_retry() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (yes|no) \| (.*) \| .+ \|$", text_of("docs/errors.md"), re.MULTILINE)
    told = {name: (code, retry, fields) for name, code, retry, fields in rows}
    kinds = [getattr(errors, name) for name in errors.__all__]
    true = {
        kind.__name__: (kind.code, "yes" if kind.retryable else "no", ", ".join(f"`{name}`" for name in kind.fields))
        for kind in kinds
    }
    assert told == true


@pytest.mark.parametrize("model", [Settings, Limits])
def test_each_setting_is_told_with_its_default(model: type[BaseModel]) -> None:
    told = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", text_of("docs/operations.md"), re.MULTILINE))
    true = {name: _written(field.default) for name, field in model.model_fields.items()}
    none(f"{name}: {default}, told {told.get(name)}" for name, default in true.items() if told.get(name) != default)


def _is_told(name: str, text: str) -> bool:
    """Whether a page names a call: as a call, or in its heading or a sentence as code."""
    return re.search(rf"[.`]{name}(\(|`)", text) is not None


def _written(default: object) -> str:
    """Return a default as the tables have it."""
    if isinstance(default, frozenset):
        return "`CREDENTIAL_NAMES`"
    if isinstance(default, bool) or default is None or isinstance(default, str):
        return f"`{default}`"
    return f"{default:,.1f}".removesuffix(".0")
