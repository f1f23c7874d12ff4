"""What the contract may import, and what importing it loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_ALLOWED = {
    "nl2state": {"nl2state", "pydantic", "pydantic_core", "cryptography"},
    "nl2state_memory": {"nl2state", "nl2state_memory"},
    "nl2state_postgres": {"nl2state", "nl2state_postgres", "psycopg", "psycopg_pool", "pydantic"},
}
_MORE = {
    "nl2state/testing": {"pytest", "freezegun"},
    "nl2state_postgres/cli.py": {"typer", "rich"},
    "nl2state_postgres/demo": {"rich"},
}


@pytest.mark.parametrize("package", sorted(_ALLOWED))
def test_a_package_imports_what_it_may(package: str) -> None:
    wrong = []
    for path in (_ROOT / package).rglob("*.py"):
        name = path.relative_to(_ROOT).as_posix()
        allowed = _ALLOWED[package] | set(sys.stdlib_module_names)
        for prefix, more in _MORE.items():
            allowed |= more if name.startswith(prefix) else set()
        for node in ast.walk(ast.parse(path.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, name
                modules.append(str(node.module))
            wrong += [f"{name}: {module}" for module in modules if module.split(".")[0] not in allowed]
    assert wrong == []


def test_the_contract_loads_no_driver_and_no_cryptography() -> None:
    code = "import sys, nl2state; print([m for m in ('psycopg', 'psycopg_pool', 'cryptography') if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "[]\n"
