"""The code of the README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from psycopg import conninfo

from tests.servers import PostgresHarness

_ROOT = Path(__file__).parents[2]


def test_the_readme_s_code_runs(postgres: PostgresHarness) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (_ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    own = f"readme_{postgres.schema}"
    postgres.observer.execute(f'CREATE DATABASE "{own}"')
    names: dict[str, Any] = {
        "dsn": conninfo.make_conninfo(postgres.dsn, dbname=own),
        "PEPPER": "from the service's own secrets",
        "charge_the_card": lambda total, idempotency_key: f"ch_{total}_{idempotency_key[:3]}",
        "__name__": "readme",
    }
    try:
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    finally:
        if "store" in names:
            names["store"].close()
        postgres.observer.execute(f'DROP DATABASE "{own}" WITH (FORCE)')


def test_its_links_lead_somewhere() -> None:
    for page in [_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), (page.name, target)
