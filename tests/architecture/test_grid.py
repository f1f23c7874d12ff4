"""One noun, one file, the same name in every layer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.architecture.source import BACKENDS, ROOT, capabilities, classes, is_protocol, none

_LAYERS = (
    "nl2state/{noun}.py",
    *(f"{backend}/{{noun}}.py" for backend in BACKENDS),
    "nl2state_postgres/sql/{noun}.sql",
    "nl2state/testing/{noun}.py",
    "tests/conformance/test_{noun}.py",
    "docs/{noun}.md",
)
_NO_NOUNS_SQL = {"schema", "system"}
"""Files of statements that are no noun's: of the migrations, and of what crosses tenants."""


def test_each_noun_has_its_file_in_every_layer() -> None:
    files = [layer.format(noun=noun) for noun in capabilities() for layer in _LAYERS]
    none(file for file in files if not (ROOT / file).is_file())


def test_a_noun_s_protocol_is_in_the_noun_s_file() -> None:
    homes = {noun: kind.__module__ for noun, kind in capabilities().items()}
    none(f"{noun} is in {home}" for noun, home in homes.items() if home != f"nl2state.{noun}")


def test_the_contract_has_no_noun_that_a_tenant_lacks() -> None:
    stores = {kind for kind in classes("nl2state") if is_protocol(kind) and kind.__name__.endswith("Store")}
    homes = {kind.__module__.removeprefix("nl2state.") for kind in stores if kind.__name__ != "Store"}
    none(homes - capabilities().keys())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_implements_each_noun_in_its_file_and_nowhere_else(backend: str) -> None:
    protocols = set(capabilities().values())
    implementations = {kind for kind in classes(backend) if protocols & set(kind.__mro__)}
    homes = {kind.__name__: kind.__module__ for kind in implementations}
    places = {f"{backend}.{noun}" for noun in capabilities()}
    none(f"{place} implements nothing" for place in places - set(homes.values()))
    none(f"{name} is in {home}" for name, home in homes.items() if home not in places)


def test_the_statements_have_no_noun_that_the_contract_lacks() -> None:
    stems = {path.stem for path in (ROOT / "nl2state_postgres/sql").glob("*.sql")}
    none(stems - capabilities().keys() - _NO_NOUNS_SQL)


def test_each_file_of_the_shipped_suite_is_bound_and_no_other_is() -> None:
    shipped = {path.stem for path in (ROOT / "nl2state/testing").glob("*.py") if "class Test" in path.read_text()}
    bound = {noun for path in (ROOT / "tests/conformance").glob("*.py") for noun in _bound(path)}
    none(f"{noun}: shipped and not bound, or bound and not shipped" for noun in bound ^ shipped)


def _bound(path: Path) -> list[str]:
    """Return whose classes a file of tests/conformance collects: those of its own name, or none."""
    bound = re.findall(r"^from nl2state\.testing\.(\w+) import \*", path.read_text(), re.MULTILINE)
    assert bound in ([], [path.stem.removeprefix("test_")]), path.name
    return bound
