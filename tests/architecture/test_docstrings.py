"""What is public says what it is. The shipped tests' methods are excepted: their names are sentences."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.source import (
    PACKAGES,
    Function,
    Module,
    assigned,
    docstring_of,
    is_public,
    is_type_variable,
    modules,
    none,
)


def test_public_names_have_docstrings() -> None:
    none(f"{module.name}: {name}" for module in modules(*PACKAGES) for name in _mute(module))


def _mute(module: Module) -> Iterator[str]:
    """Yield the public names of a module that say nothing: classes, their methods, functions, constants."""
    body = module.tree.body
    for index, node in enumerate(body):
        if isinstance(node, ast.ClassDef) and is_public(node.name):
            yield from [] if ast.get_docstring(node) else [node.name]
            yield from (f"{node.name}.{name}" for name in _mute_methods(node, module))
        elif isinstance(node, Function) and is_public(node.name):
            yield from [] if ast.get_docstring(node) else [node.name]
        elif not is_type_variable(node) and docstring_of(body, index + 1) is None:
            yield from filter(is_public, assigned(node))


def _mute_methods(node: ast.ClassDef, module: Module) -> Iterator[str]:
    is_shipped_suite = module.name.startswith("nl2state/testing/")
    for member in node.body:
        if not isinstance(member, Function) or not is_public(member.name) or ast.get_docstring(member):
            continue
        if not (is_shipped_suite and member.name.startswith("test_")):
            yield member.name
