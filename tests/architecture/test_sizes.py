"""What fits one screen, one reading, one backend's afternoon."""

from __future__ import annotations

import ast

from tests.architecture.source import PACKAGES, Function, classes, is_protocol, methods, modules, none

_FILE_LINES_MAX = 400
_FUNCTION_LINES_MAX = 60
"""From `def` to the last line, the docstring among them, decorators not: what has to be scrolled to read it."""
_PROTOCOL_METHODS_MAX = 15


def test_no_file_is_longer_than_it_may_be() -> None:
    lengths = {module.name: len(module.path.read_text().splitlines()) for module in modules(*PACKAGES, "tests")}
    none(f"{name}: {lines} lines" for name, lines in lengths.items() if lines > _FILE_LINES_MAX)


def test_no_function_is_longer_than_it_may_be() -> None:
    lengths = {
        f"{module.name}:{node.lineno} {node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules(*PACKAGES, "tests")
        for node in ast.walk(module.tree)
        if isinstance(node, Function)
    }
    none(f"{name}: {lines} lines" for name, lines in lengths.items() if lines > _FUNCTION_LINES_MAX)


def test_no_protocol_asks_for_more_than_it_may() -> None:
    protocols = [kind for package in PACKAGES for kind in classes(package) if is_protocol(kind)]
    assert len(protocols) >= 4
    counts = {kind.__qualname__: len(methods(kind)) for kind in protocols}
    none(f"{name}: {count} methods" for name, count in counts.items() if count > _PROTOCOL_METHODS_MAX)
