"""SQL is data: it is in `.sql` files, where each statement has a name and says what it does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.source import PACKAGES, ROOT, Function, Module, assigned, docstring_of, modules, none

_FOLDERS = re.compile(r"nl2state_postgres/(migrations|sql|demo/sql)/\w+\.sql")

_STATEMENT = re.compile(
    r"""
    (?i:
        \bselect\b .* \bfrom\b | \binsert\s+into\b | \bupdate\b .* \bset\b | \bdelete\s+from\b | \bmerge\s+into\b
      | ^\s* with\s+\w+ .* \bas\s*\( | \btruncate\s+table\b | \block\s+table\b
      | \b (create|alter|drop) \s+ (or\s+replace\s+|unique\s+|unlogged\s+|temp\w*\s+)*
          (table|index|schema|role|function|procedure|trigger|view|type|sequence|extension|database|domain|policy) \b
    )
    | ^\s* (SELECT|VALUES|SET|RESET|SHOW|DISCARD|GRANT|REVOKE|LISTEN|NOTIFY|UNLISTEN|LOCK|CALL|DO|COPY|ANALYZE
            |VACUUM|EXPLAIN|PREPARE|EXECUTE|DEALLOCATE|TRUNCATE|COMMENT
            |BEGIN|START|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|ABORT|END) \b
    """,
    re.VERBOSE | re.DOTALL,
)

# The one exception: commands that name no table and take no parameter. When each is sent is all that a transaction is,
# so it is read where the transaction is; and what forgets the prepared statements cannot be one of them.
_SESSION_COMMANDS = re.compile(
    r"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE|COMMIT|ROLLBACK"
    r"|DEALLOCATE ALL|SAVEPOINT \{\}|RELEASE SAVEPOINT \{\}|ROLLBACK TO SAVEPOINT \{\}"
)


def test_no_sql_is_outside_its_folders() -> None:
    strings = [(module, *string) for module in modules(*PACKAGES) for string in _strings(module)]
    wrong = [
        f"{module.name}:{line}: {text[:60]!r}"
        for module, line, text in strings
        if _STATEMENT.search(text)
        and not (module.name.startswith("nl2state_postgres/") and _SESSION_COMMANDS.fullmatch(text))
    ]
    none(wrong)


def test_sql_files_are_in_their_folders_alone() -> None:
    files = [path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.sql")]
    assert len(files) > 4
    none(file for file in files if not _FOLDERS.fullmatch(file))


def test_no_statement_skips_rows_by_their_number() -> None:
    """P11: OFFSET reads what it skips. A page begins after a key."""
    none(
        path.name
        for path in (ROOT / "nl2state_postgres").rglob("*.sql")
        if re.search(r"(?i)\boffset\b", path.read_text())
    )


def _strings(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string, docstrings and `__all__` left out; what an f-string fills in is `{}`."""
    passed_over: set[int] = set()
    for node in ast.walk(module.tree):
        if "__all__" in assigned(node):
            passed_over |= {id(part) for part in ast.walk(node)}
        elif isinstance(node, ast.Module | ast.ClassDef | Function):
            docstrings = [i for i in range(len(node.body)) if docstring_of(node.body, i) is not None]
            passed_over |= {id(node.body[i].value) for i in docstrings}  # type: ignore[attr-defined]  # they are Expr
        elif isinstance(node, ast.JoinedStr):
            passed_over |= {id(part) for part in node.values}
            yield (
                node.lineno,
                "".join(str(getattr(part, "value", "")) if _is_text(part) else "{}" for part in node.values),
            )
        elif _is_text(node) and id(node) not in passed_over:
            yield node.lineno, node.value  # type: ignore[attr-defined]  # it is text


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
