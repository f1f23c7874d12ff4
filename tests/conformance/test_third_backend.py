"""A backend that is not ours: the page that says how one is tested, and what the suite finds in a faulty one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from nl2state.testing.harness import Capability
from tests.memory.harness import MemoryHarness
from tests.servers import PostgresHarness

_ROOT = Path(__file__).parents[2]

_TOY = """
from nl2state_memory import MemoryStore

class ToyStore(MemoryStore):
    @property
    def waiting(self):
        return self._database.waiting
"""


class Fault(NamedTuple):
    """A backend's mistake: the code that makes it, and the class of the suite that has to find it."""

    code: str
    module: str
    found_by: str


_FAULTS = {
    "a compare-and-set that ignores the revision": Fault(
        """
from nl2state.states import ANY_REVISION
from nl2state_memory.states import MemoryStates

update = MemoryStates.update

def careless(self, record_id, value, *, expected_revision, **options):
    return update(self, record_id, value, expected_revision=ANY_REVISION, **options)

MemoryStates.update = careless
""",
        "states",
        "TestCompareAndSet",
    ),
    "a token that does not rise over a release": Fault(
        """
from dataclasses import replace
from nl2state_memory.database import Database
from nl2state_memory.leases import MemoryLeases

free = MemoryLeases._free
Database.first_number = lambda self, at: 1
MemoryLeases._free = lambda self, unit, name, row: free(self, unit, name, replace(row, token=row.token - 1))
""",
        "tokens",
        "TestMonotonicTokens",
    ),
    "a fenced write that looks at the lease and does not keep it": Fault(
        """
from nl2state.errors import FencingRejectedError
from nl2state_memory import idempotency, states

def look(unit, binding, fence):
    if fence is not None:
        row = unit.read(unit.database.leases, binding.name(fence.resource))
        if row is None or not row.is_grant(fence) or row.expires_at <= unit.database.clock():
            raise FencingRejectedError("the lease was lost")

states.guard = idempotency.guard = look
""",
        "leases",
        "TestFencedCommit",
    ),
    "a list that shows the rows of every scope": Fault(
        """
from nl2state_memory.tables import Table

scan = Table.scan

def leak(self, unit, scope, span):
    rows = [row for each in self._scopes for row in scan(self, unit, each, span)]
    return sorted(rows, key=lambda row: row[0])[: span.limit + 1]

Table.scan = leak
""",
        "isolation",
        "TestIsolation",
    ),
    "a superseded attempt that can complete": Fault(
        """
from nl2state_memory.rows import KeyRow

def lenient(self, number, at, *, claimed=False):
    return self.completed_at is None and (self.claim_until if claimed else self.expires_at) > at

KeyRow.is_attempt = lenient
""",
        "idempotency",
        "TestOneAttempt",
    ),
}

_SKIPS = """
import pytest
from toy_harness import ToyHarness

def skip(self, seconds):
    pytest.skip("today the clock is not moved")

ToyHarness.move_clock = skip
"""

_EXCUSES = """
import pytest

def pytest_collection_modifyitems(items):
    items[0].add_marker(pytest.mark.skip(reason="not today"))
    items[1].add_marker(pytest.mark.skipif("True", reason="not on this machine"))
    items[2].add_marker(pytest.mark.xfail(reason="one day"))
"""

_HIDES = """
import sys
import types
import pytest

class Hidden(types.ModuleType):
    def __getattr__(self, name):
        pytest.skip("it is not installed", allow_module_level=True)

sys.modules["freezegun"] = Hidden("freezegun")
"""


_REMOVES = """
def pytest_collection_modifyitems(config, items):
    del items[0]
"""

_DESELECTS = """
def pytest_collection_modifyitems(config, items):
    config.hook.pytest_deselected(items=[items.pop(0)])
"""


def test_a_backend_without_a_fault_passes_on_three_lines(tmp_path: Path) -> None:
    told = _run(tmp_path, "", "terminal", "isolation", "bounds")
    counts = _counts(told)
    assert counts.keys() == {"passed", "skipped"}, told
    assert counts["passed"] > 50
    reasons = set(re.findall(r"^SKIPPED .*: (the harness .*)", told, re.MULTILINE))
    assert reasons == {"the harness does not declare that it can open a client whose bounds on waits are short"}


@pytest.mark.parametrize("fault", _FAULTS.values(), ids=_FAULTS.keys())
def test_a_backend_with_a_fault_fails_the_promise_that_it_breaks(tmp_path: Path, fault: Fault) -> None:
    told = _run(tmp_path, fault.code, f"{fault.module}::{fault.found_by}")
    failed = re.findall(r"^FAILED conftest\.py::(\w+)::(\w+)::(\w+)", told, re.MULTILINE)
    assert {found[:2] for found in failed} == {(fault.module, fault.found_by)}, told
    assert "errors" not in _counts(told), told


def test_a_declared_capability_that_is_skipped_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(_SKIPS)
    told = _run(tmp_path, "", "terminal::TestTerminal", plugin="ours")
    assert "today the clock is not moved" in told
    assert _counts(told)["failed"] > 0, told
    assert "skipped" not in _counts(told), told


def test_a_test_that_is_skipped_or_expected_to_fail_fails_the_run(tmp_path: Path) -> None:
    """What a backend's conftest.py can do to tests that it cannot pass."""
    (tmp_path / "ours.py").write_text(_EXCUSES)
    told = _run(tmp_path, "", "terminal::TestTerminal", plugin="ours")
    counts = _counts(told)
    assert (counts["failed"], counts["errors"]) == (1, 2), told
    for excuse in ("not today", "not on this machine", "one day"):
        assert re.search(f"and its harness lacks nothing: .*{excuse}", told), told
    assert counts.keys() == {"failed", "errors", "passed"}, told


def test_a_module_that_is_skipped_as_a_whole_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(_HIDES)
    told = _run(tmp_path, "", "clocks", "terminal::TestOrderOfRefusals", plugin="ours")
    assert "and its harness lacks nothing: Skipped: it is not installed" in told, told
    assert "skipped" not in _counts(told), told


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "in a worker"])
def test_a_test_that_is_removed_in_silence_fails_the_rest(tmp_path: Path, options: tuple[str, ...]) -> None:
    """One that is deselected is counted, where everybody looks."""
    (tmp_path / "ours.py").write_text(_REMOVES)
    told = _run(tmp_path, "", "tokens::TestMonotonicTokens", plugin="ours", options=options)
    assert "1 tests of the suite were removed in silence" in told, told
    assert "passed" not in told, told
    (tmp_path / "ours.py").write_text(_DESELECTS)
    told = _run(tmp_path, "", "tokens::TestMonotonicTokens", plugin="ours")
    assert _counts(told).keys() == {"passed", "deselected"}, told


def test_the_suite_is_whole_and_the_same_on_each_harness() -> None:
    """Every module of the suite is bound here, and each of its tests is collected once a harness, and none skipped.

    That none is skipped is what the plugin sees to, where all capabilities are declared.
    """
    assert MemoryHarness.capabilities == PostgresHarness.capabilities == frozenset(Capability)
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests/conformance"],
        cwd=_ROOT,
        env=_environment(_ROOT),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    tests = re.findall(r"^tests/conformance/test_(\w+)\.py::(Test\w+::\w+)(?:\[(.*)\])?$", collected, re.MULTILINE)
    ran: dict[str, set[tuple[str, ...]]] = {"memory": set(), "postgres": set(), "lent": set()}
    for module, name, parameters in tests:
        words = parameters.split("-")
        for backend, seen in ran.items():
            if backend in words:
                words.remove(backend)
                seen.add((module, name, *words))
    assert ran["memory"] == ran["postgres"] == ran["lent"]
    assert len(ran["memory"]) > 400
    without_classes = {"__init__", "plugin", "harness", "calls", "many_calls"}
    shipped = {path.stem for path in (_ROOT / "nl2state/testing").glob("*.py")} - without_classes
    assert {module for module, *_ in ran["memory"]} == shipped


def _run(project: Path, fault: str, *selected: str, plugin: str | None = None, options: tuple[str, ...] = ()) -> str:
    """Make the page's project, with a backend of that fault, and run parts of the suite on it."""
    (project / "toy.py").write_text(_TOY + fault)
    page = (_ROOT / "docs/backends.md").read_text()
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL)
    assert [name for name, _ in blocks] == ["toy_harness.py", "conftest.py"]
    for name, code in blocks:
        (project / name).write_text(code)
    assert len(blocks[1][1].replace("\n\n", "\n").splitlines()) == 3, "three lines"
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\naddopts = --strict-markers -rs\n")
    options = (*options, "-q", "-p", "no:cacheprovider", "-rfs", *(["-p", plugin] if plugin else []))
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"conftest.py::{part}" for part in selected)],
        cwd=project,
        env=_environment(project, _ROOT),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    ).stdout


def _environment(*path: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTEST_ADDOPTS": ""}


def _counts(told: str) -> dict[str, int]:
    """Return the numbers of the last line: how many passed, failed, ..."""
    return {word: int(count) for count, word in re.findall(r"(\d+) ([a-z]+)", told.strip().splitlines()[-1])}
