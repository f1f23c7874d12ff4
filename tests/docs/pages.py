"""The pages of the documentation, and the code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
)

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of Python in a page."""

    page: str
    line: int
    code: str

    def run(self, names: dict[str, Any]) -> None:
        """Run it among the names that the blocks before it left."""
        # blank lines put the page's own line numbers into a traceback
        exec(compile("\n" * (self.line - 1) + self.code, self.page, "exec"), names)


def text_of(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text()


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of Python in a page, in their order."""
    text = text_of(page)
    for match in _BLOCK.finditer(text):
        yield Block(page, text.count("\n", 0, match.start(1)) + 1, match[1])


def opens_its_own_store(page: str) -> bool:
    """Whether the code of a page asks for a server, and so runs on one alone."""
    return any(re.search(r"\bdsn\b|DATABASE_URL", block.code) for block in blocks(page))
