"""What is public is listed, and is called by the words of the contract."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.source import (
    BACKENDS,
    PACKAGES,
    Function,
    Module,
    assigned,
    is_public,
    is_type_variable,
    modules,
    none,
)

_VAGUE_MODULES = {"base", "common", "helpers", "misc", "models", "utils"}
_FOREIGN_WORDS = {"customer", "customers", "etag", "etags", "job", "jobs", "task", "tasks", "user", "users"}

_LOCKS = {
    "lock_seconds": ("nl2state/testing",),  # how long a bounded client of the suite waits for a row lock
    "lock": ("nl2state_memory",),  # a row lock of one of PostgreSQL's strengths
    "lock_timeout_seconds": BACKENDS,  # PostgreSQL's lock_timeout, by its own name in both
    "LockTimeoutError": ("nl2state_postgres",),  # of its 55P03
}
"""What says "lock" in public because it means PostgreSQL's own. A lease is never called one."""


def test_each_module_lists_what_it_defines_for_others() -> None:
    wrong = []
    for module in modules(*PACKAGES):
        listed, defined = _listed(module), set(_defined(module))
        if listed is None:
            wrong += [f"{module.name}: no __all__"] if len(module.tree.body) > 1 else []
            continue
        wrong += [f"{module.name}: {name} is not in __all__" for name in sorted(defined - set(listed))]
        wrong += [f"{module.name}: {name} is in __all__, and not its own" for name in sorted(set(listed) - defined)]
    none(wrong)


def test_each_list_is_sorted() -> None:
    lists = {module.name: _listed(module) or [] for module in modules(*PACKAGES)}
    none(
        f"{name}: {listed} is not in its order, or names one twice"
        for name, listed in lists.items()
        if listed != sorted(set(listed), key=_in_order)
    )


def test_no_module_has_a_name_that_says_nothing() -> None:
    parts = {module.name: {*module.path.parent.parts, module.path.stem} for module in modules(*PACKAGES, "tests")}
    none(name for name, stems in parts.items() if stems & _VAGUE_MODULES)


def test_public_names_use_the_words_of_the_contract() -> None:
    wrong = []
    for module in modules(*PACKAGES):
        for name, line in _public_names(module):
            if name.startswith("test_"):  # a sentence of the shipped suite
                continue
            words = set(_words(name))
            is_foreign = words & _FOREIGN_WORDS
            is_lock = words & {"lock", "locks", "locked", "unlock"}
            if is_foreign or (is_lock and not module.name.startswith(_LOCKS.get(name, "-"))):
                wrong.append(f"{module.name}:{line}: {name}")
    none(wrong)


def test_the_shipped_suite_names_no_backend() -> None:
    names = [backend.removeprefix("nl2state_") for backend in BACKENDS]
    pattern = re.compile("|".join([*names, "psycopg", r"\bsql", "libpq"]), re.IGNORECASE)
    shared = modules("nl2state/testing")
    lines = [(module, *line) for module in shared for line in enumerate(module.path.read_text().splitlines(), 1)]
    none(f"{module.name}:{number}: {line}" for module, number, line in lines if pattern.search(line))


def _listed(module: Module) -> list[str] | None:
    """Return what the module's `__all__` says."""
    for node in module.tree.body:
        if "__all__" in assigned(node):
            listed: list[str] = ast.literal_eval(node.value)  # type: ignore[attr-defined]  # it is assigned to
            return listed
    return None


def _defined(module: Module) -> Iterator[str]:
    """Yield the public names that a module defines; a package defines what it imports for others."""
    for node in _statements(module.tree.body):
        if isinstance(node, ast.ImportFrom) and module.is_package:
            yield from filter(is_public, (alias.asname or alias.name for alias in node.names))
        elif isinstance(node, ast.ClassDef | Function) and is_public(node.name):
            yield from [] if node.name.startswith("pytest_") else [node.name]  # a plugin's hook: pytest finds it
        elif not is_type_variable(node):
            yield from filter(is_public, assigned(node))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported, those of its `if` and `try` among them."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _statements([*node.body, *node.orelse])


def _public_names(module: Module) -> Iterator[tuple[str, int]]:
    """Yield each public identifier, and its line: the module's, its classes' and functions' with their parameters."""
    yield module.path.stem, 1
    pending: list[ast.stmt] = list(_statements(module.tree.body))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ClassDef | Function) and (is_public(node.name) or node.name == "__init__"):
            yield node.name, node.lineno
            pending += node.body if isinstance(node, ast.ClassDef) else []
        if isinstance(node, Function) and (is_public(node.name) or node.name == "__init__"):
            arguments = node.args
            named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            yield from ((argument.arg, argument.lineno) for argument in named if is_public(argument.arg))
            yield from ((name, node.lineno) for name in _attributes(node) if is_public(name))
        yield from ((name, node.lineno) for name in assigned(node) if is_public(name))


def _attributes(function: Function) -> Iterator[str]:
    """Yield what a method sets on its own object."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def _in_order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Return the key of ruff's RUF022: constants, classes, then the rest; each in natural order."""
    kind = 0 if name.isupper() else 1 if name.lstrip("_")[:1].isupper() else 2
    return kind, [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
