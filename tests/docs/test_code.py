"""The code of the documentation runs as it stands, page by page, and says by its own assertions what comes of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from psycopg import conninfo

from nl2state.testing.harness import Harness
from nl2state_memory import MemoryStore
from nl2state_postgres import PostgresStore
from tests.docs.pages import PAGES, ROOT, blocks, opens_its_own_store, text_of
from tests.servers import PostgresHarness

_RUN_ELSEWHERE = {"docs/backends.md"}  # as the files that it says, by tests/conformance/test_third_backend.py
_WITH_CODE = [page for page in PAGES if any(blocks(page)) and page not in _RUN_ELSEWHERE]
_PEPPER = "from the service's own secrets"


@pytest.fixture
def dsn_of_its_own(postgres: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the DSN of an empty database, also as a service finds it in its environment."""
    own = f"page_{postgres.schema}"
    postgres.observer.execute(f'CREATE DATABASE "{own}"')
    dsn = conninfo.make_conninfo(postgres.dsn, dbname=own)
    monkeypatch.setenv("DATABASE_URL", dsn)
    yield dsn
    postgres.observer.execute(f'DROP DATABASE "{own}" WITH (FORCE)')


@pytest.mark.parametrize("page", [page for page in _WITH_CODE if opens_its_own_store(page)])
def test_a_page_that_opens_its_store_runs(page: str, dsn_of_its_own: str) -> None:
    _run(page, {"dsn": dsn_of_its_own, "charge_the_card": _charge})


@pytest.mark.parametrize("page", [page for page in _WITH_CODE if not opens_its_own_store(page)])
def test_a_page_that_is_handed_its_store_runs_on_each_backend(page: str, harness: Harness) -> None:
    _run(page, {"store": harness.clients[0]})


def test_every_page_that_shows_calls_is_run() -> None:
    assert {"README.md", "docs/states.md", "docs/leases.md", "docs/idempotency.md", "docs/transactions.md"} <= {
        *_WITH_CODE
    }
    fences = {page: len(re.findall(r"^ *```py", text_of(page), re.MULTILINE)) for page in PAGES}
    assert fences == {page: len(list(blocks(page))) for page in PAGES}


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text_of(page)):
            if target.startswith("http"):
                continue
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), (page, target)
            assert not anchor or anchor in _anchors(path.read_text()), (page, target, anchor)


def _run(page: str, given: dict[str, Any]) -> None:
    names = {"PEPPER": _PEPPER, "__name__": "page", **given}
    with ExitStack() as opened:
        opened.callback(
            lambda: [made.close() for made in [*names.values()] if isinstance(made, MemoryStore | PostgresStore)]
        )
        for block in blocks(page):
            block.run(names)


def _charge(total: int, *, idempotency_key: str) -> str:
    return f"ch_{total}_{idempotency_key[:3]}"


def _anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
