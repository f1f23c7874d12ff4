"""The pytest plugin of the conformance suite: docs/backends.md shows how a backend's conftest.py uses it.

It does three things. It collects the suite's modules, as pytest collects any, where a conftest.py names its harness; it
makes that harness, for each test that asks for one; and it lets no test of the suite be passed over in silence: a skip
is a failure unless it is for a capability that the harness does not declare, and what was collected is run, or counted
as deselected.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from nl2state.testing.harness import Capability, Harness, NotDeclaredError

__all__ = ["HARNESS", "Suite", "harness"]

HARNESS: Final = "nl2state_harness"
"""The name in a conftest.py of what makes a harness: a subclass of Harness, or any call that returns one."""

_PACKAGE: Final = Path(__file__).parent
_BY_DIRECTORY: Final = pytest.StashKey[dict[Path, Callable[[], Harness]]]()
_COLLECTED: Final = pytest.StashKey[set[str]]()


class Suite(pytest.File):
    """The suite, beside the conftest.py that names a harness."""

    def collect(self) -> Iterator[pytest.Module]:
        """Yield the suite's modules."""
        for path in _modules():
            yield pytest.Module.from_parent(self, path=path, name=path.stem, nodeid=f"{self.nodeid}::{path.stem}")


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker, and let the suite's assertions say what they compared."""
    config.addinivalue_line("markers", "needs(*capabilities): what the harness has to declare, or the test is skipped")
    pytest.register_assert_rewrite(*(f"nl2state.testing.{path.stem}" for path in _modules()))


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Note the harness that a conftest.py names."""
    made = getattr(plugin, HARNESS, None)
    path, config = getattr(plugin, "__file__", None), _config_of(manager)
    if made is not None and path is not None and config is not None:
        config.stash.setdefault(_BY_DIRECTORY, {})[Path(path).parent] = made


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Suite | None:
    """Collect the suite beside a conftest.py that names a harness."""
    if file_path.name == "conftest.py" and file_path.parent in parent.config.stash.get(_BY_DIRECTORY, {}):
        return Suite.from_parent(parent, path=file_path)
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note a test of the suite: until the end of the collection, it is to be run."""
    if _is_of_the_suite(item):
        item.config.stash.setdefault(_COLLECTED, set()).add(item.nodeid)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Forget those that the run's last line counts as deselected: by -k, -m, or a hook that says so."""
    for item in items:
        item.config.stash.setdefault(_COLLECTED, set()).discard(item.nodeid)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave those that a hook has removed, and told nobody."""
    session.config.stash.setdefault(_COLLECTED, set()).difference_update(item.nodeid for item in session.items)


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """Yield an empty store of the harness that the nearest conftest.py names."""
    by_directory = request.config.stash.get(_BY_DIRECTORY, {})
    for node in reversed(request.node.listchain()):
        if node.path in by_directory:
            made = by_directory[node.path]()
            yield made
            made.close()
            return
    pytest.fail(f"no conftest.py above names its harness: {HARNESS} = ...", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail the suite where a part of it was removed; skip a test that needs what its harness does not declare."""
    removed = item.config.stash.get(_COLLECTED, None) if _is_of_the_suite(item) else None
    if removed:
        pytest.fail(f"{len(removed)} tests of the suite were removed in silence, as {min(removed)}", pytrace=False)
    used = _harness_of(item)
    for mark in item.iter_markers("needs"):
        for capability in mark.args:
            if used is not None:
                used.require(capability)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test of the suite that was skipped, or was expected to fail, though nothing that it needs is missing."""
    report = yield
    expected = hasattr(report, "wasxfail")
    if _is_of_the_suite(item) and (report.skipped or expected) and not _lacks(item, call.excinfo):
        _fail(report, "expected to fail" if expected else "skipped")
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module of the suite that was skipped as a whole."""
    report = yield
    where = Path(report.longrepr[0]) if isinstance(report.longrepr, tuple) else None
    of_the_suite = any(isinstance(node, Suite) for node in collector.listchain())
    if report.skipped and (of_the_suite or (where is not None and where.parent == _PACKAGE)):
        _fail(report, "skipped")
    return report


def _modules() -> Iterable[Path]:
    """Return the modules of the suite: all of this package, whatever is in them."""
    return sorted(path for path in _PACKAGE.glob("*.py") if path.stem not in ("__init__", "plugin", "harness"))


def _config_of(manager: pytest.PytestPluginManager) -> pytest.Config | None:
    found = manager.get_plugin("pytestconfig")
    return found if isinstance(found, pytest.Config) else None


def _harness_of(item: pytest.Item) -> Harness | None:
    used: object = getattr(item, "funcargs", {}).get("harness")
    return used if isinstance(used, Harness) else None


def _is_of_the_suite(item: pytest.Item) -> bool:
    kind = getattr(item, "cls", None)
    return kind is not None and kind.__module__.startswith("nl2state.testing.")


def _lacks(item: pytest.Item, raised: pytest.ExceptionInfo[BaseException] | None) -> bool:
    """Whether a test was skipped for what its harness does not declare."""
    used = _harness_of(item)
    if used is None or raised is None or not isinstance(raised.value, NotDeclaredError):
        return False
    capability: Capability = raised.value.capability
    return capability not in used.capabilities


def _fail(report: Any, what: str) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
    report.outcome = "failed"
    report.longrepr = f"a test of the conformance suite was {what}, and its harness lacks nothing: {reason}"
    if hasattr(report, "wasxfail"):
        del report.wasxfail
