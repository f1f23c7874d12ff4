"""The pages of the documentation, and the code in them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
)

_BLOCK = re.compile(r"(?:^<!-- needs: ([\w.]+) -->\n+)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of Python in a page. `needs` is a name without which it cannot run yet: package.module.Class.method."""

    page: str
    line: int
    code: str
    needs: str | None

    def run(self, names: dict[str, Any]) -> None:
        """Run it among the names that the blocks before it left; where it needs what is not there, compile it."""
        # blank lines put the page's own line numbers into a traceback
        compiled = compile("\n" * (self.line - 1) + self.code, self.page, "exec")
        if self.needs is None or _exists(self.needs):
            exec(compiled, names)


def text_of(page: str) -> str:
    """Return the text of a page."""
    return (ROOT / page).read_text()


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of Python in a page, in their order."""
    text = text_of(page)
    for match in _BLOCK.finditer(text):
        yield Block(page, text.count("\n", 0, match.start(2)) + 1, match[2], match[1])


def opens_its_own_store(page: str) -> bool:
    """Whether the code of a page asks for a server, and so runs on one alone."""
    return any(re.search(r"\bdsn\b|DATABASE_URL", block.code) for block in blocks(page))


def _exists(name: str) -> bool:
    module, _, rest = name.partition(".")
    found: Any = importlib.import_module(module)
    for part in rest.split("."):
        found = getattr(found, part, None)
    return found is not None
