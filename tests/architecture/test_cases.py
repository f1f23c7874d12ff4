"""Which tests stand for the failures that users of other systems reported, by the numbers in their docstrings.

A docstring that begins with "Case 13: ..." or "Cases 26, 28 and 30: ..." says that the test fails where a store behaves
as that report tells.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_CASES = frozenset({*range(1, 32), *range(35, 41)})
"""32 to 34 are about queues and the outbox, which are not there yet."""

_NUMBERS = re.compile(r"Cases? (\d+(?:(?:, | and )\d+)*): \S")


def _tests() -> list[tuple[str, str]]:
    """Return where each test is, and its docstring."""
    found = []
    for folder in ("nl2state/testing", "tests"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    found.append((f"{path.relative_to(_ROOT)}::{node.name}", ast.get_docstring(node) or ""))
    return found


def _numbers(docstring: str) -> set[int]:
    told = _NUMBERS.match(docstring)
    return {int(number) for number in re.findall(r"\d+", told[1])} if told else set()


def test_each_case_is_a_test_that_says_its_number() -> None:
    told = set().union(*(_numbers(docstring) for _, docstring in _tests()))
    assert sorted(told) == sorted(_CASES)


def test_a_number_is_said_in_the_form_that_is_counted() -> None:
    """A case named elsewhere in a docstring would count for nothing, though its reader thinks that it does."""
    wrong = [where for where, text in _tests() if re.search(r"\b[Cc]ases? \d", text) and not _numbers(text)]
    assert wrong == []
