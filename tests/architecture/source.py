"""The source of the three packages, and of their tests, as the rules of this folder read it."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import is_typeddict

import pytest

from nl2state.store import Tenant

ROOT = Path(__file__).parents[2]
PACKAGES = ("nl2state", "nl2state_memory", "nl2state_postgres")
BACKENDS = PACKAGES[1:]

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """A file of Python, parsed."""

    path: Path
    tree: ast.Module

    @property
    def name(self) -> str:
        """Its path from the root, for a reader of the failure."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__.py` of its folder."""
        return self.path.name == "__init__.py"


@cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Return the modules below these folders of the root, in their order."""
    paths = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return tuple(Module(path, ast.parse(path.read_text())) for path in paths)


def none(wrong: Iterable[str]) -> None:
    """Fail with a line for each thing that is wrong."""
    if lines := sorted(wrong):
        pytest.fail("\n".join(lines), pytrace=False)


def docstring_of(body: list[ast.stmt], index: int) -> str | None:
    """Return the string that stands as a statement at this place, as a docstring does."""
    if index < len(body) and isinstance(node := body[index], ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else None
    return None


def assigned(node: ast.AST) -> list[str]:
    """Return the names that a statement assigns to."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def is_public(name: str) -> bool:
    """Whether a name is for others."""
    return not name.startswith("_")


def is_type_variable(node: ast.stmt) -> bool:
    """Whether a statement makes a type variable, which each module has for itself."""
    value = getattr(node, "value", None)
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "TypeVar"


def is_protocol(kind: type) -> bool:
    """Whether a class is a Protocol itself, and no implementation of one."""
    return (
        bool(getattr(kind, "_is_protocol", False)) and kind.__module__.startswith("nl2state") and not is_typeddict(kind)
    )


def classes(package: str) -> Iterator[type]:
    """Yield the classes that the modules of a package define, the shipped suite's and the command's left out."""
    for module in modules(package):
        dotted = ".".join(module.path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if "/testing/" in module.name or dotted == "nl2state_postgres.cli":  # the suite is imported by pytest
            continue
        for _, kind in inspect.getmembers(importlib.import_module(dotted), inspect.isclass):
            if kind.__module__ == dotted:
                yield kind


def methods(protocol: type) -> list[str]:
    """Return the public methods and properties of a Protocol, those among them that it inherits from another too."""
    return sorted(
        {name for kind in protocol.__mro__ if is_protocol(kind) for name in vars(kind) if is_public(name)}
        - {"_is_protocol"}
    )


def capabilities() -> dict[str, type]:
    """Return the nouns, and the Protocol of each: what a Tenant has that is a Protocol of its own.

    This is the one place that knows the nouns: it asks the contract.
    """
    found = {}
    for name, member in vars(Tenant).items():
        if isinstance(member, property):
            protocol = inspect.get_annotations(member.fget, eval_str=True)["return"]  # type: ignore[arg-type]  # a property has one
            found[name] = protocol
    assert found, "the Tenant has no capabilities: the rules of this folder would rule nothing"
    return found
