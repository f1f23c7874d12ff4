"""The named statements of `sql/*.sql`, compiled once for a schema and a clock.

A statement begins with `-- name: update_state`, and a comment that says what it does and ends in what it returns. Its
parameters are written `:name`; each name has one type, wherever it is used. Its only slots are `{schema}`, `{clock}`
and `{epoch}`, the epoch of tokens.

The comment of a write may go on with `-- Lost: read_back_state, sent again.`: what is done where the connection was
lost before its answer came. The statement that is named finds the row by its `write_id`, and returns the same columns;
`sent again` says that the write can take effect only once, however often it is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from psycopg.pq import Format

from nl2state.errors import InvalidInputError, SchemaError
from nl2state.keys import check_id
from nl2state_postgres.wire import WIRE

__all__ = ["PARAMETER_TYPES", "Catalog", "Returns", "Statement", "quote_schema", "type_of"]

PARAMETER_TYPES: Final[Mapping[str, str]] = {
    "after": "text",
    "age_seconds": "double precision",
    "attempt": "bigint",
    "attempt_ttl_seconds": "double precision",
    "before": "text",
    "checksum": "text",
    "epoch": "bigint",
    "expected_revision": "bigint",
    "expected_status": "text",
    "fence_owner": "text",
    "fence_resource": "text",
    "fence_token": "bigint",
    "fingerprint": "bytea",
    "first": "text",
    "from_statuses": "text[]",
    "idle_timeout": "text",
    "initial_status": "text",
    "is_terminal": "boolean",
    "key": "text",
    "lift_expiry": "boolean",
    "lock_key": "bigint",
    "lock_timeout": "text",
    "metadata": "bytea",
    "name": "text",
    "outcome": "bytea",
    "outcome_encoding": "smallint",
    "outcome_fingerprint": "bytea",
    "outcome_format": "smallint",
    "owner": "text",
    "page_size": "bigint",
    "parent_id": "text",
    "payload": "bytea",
    "payload_encoding": "smallint",
    "payload_format": "smallint",
    "record_id": "text",
    "request_id": "text",
    "resource": "text",
    "result_ttl_seconds": "double precision",
    "schema_name": "text",
    "schema_version": "bigint",
    "scope": "uuid",
    "source_statuses": "text[]",
    "statement_timeout": "text",
    "status": "text",
    "to_statuses": "text[]",
    "token": "bigint",
    "ttl_seconds": "double precision",
    "version": "integer",
    "write_id": "uuid",
}
"""The one type of each name that a parameter may have. `each_` before a name makes an array of its type."""

_EACH: Final = "each_"


def type_of(parameter: str) -> str | None:
    """Return the type of a parameter; None where its name is none that one may have."""
    kind = PARAMETER_TYPES.get(parameter.removeprefix(_EACH))
    return f"{kind}[]" if kind and parameter.startswith(_EACH) else kind


_HEADER = re.compile(r"^-- name: *(.*)$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RETURNS = re.compile(r"Returns: ([a-z ]+)\.$")
_LOST = re.compile(r"-- Lost: (?P<read_back>[a-z_]+)?(?:, )?(?P<again>sent again)?\.")
_SLOT = re.compile(r"\{([^}]*)\}")
_PIECE = re.compile(
    r"(?P<quoted>'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\")|(?P<cast>::)|(?<!\w):(?P<name>[A-Za-z_]\w*)|--[^\n]*"
)
_PLACEHOLDER = re.compile(r"(?<![:\w]):[a-z_]\w*")
_WRITE = re.compile(r"\b(INSERT|UPDATE|DELETE)\b")
_SCHEMA_BYTES_MAX = 63


class Returns(Enum):
    """What a statement declares that it returns."""

    ONE = "one row"
    OPTIONAL = "one row or none"
    MANY = "many rows"
    COUNT = "a count"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement as it is sent: its parameters are `$1` and on, in the order of `parameters`."""

    name: str
    sql: str
    parameters: tuple[str, ...]
    returns: Returns
    writes: bool
    read_back: str | None = None
    sent_again: bool = False
    key: bytes = field(init=False)
    text: bytes = field(init=False)
    encoders: tuple[tuple[str, Callable[[Any], bytes]], ...] = field(init=False)
    oids: tuple[int, ...] = field(init=False)
    formats: tuple[int, ...] = field(init=False)
    takes_epoch: bool = field(init=False)

    def __post_init__(self) -> None:
        """Lay out what is sent with each call."""
        wires = [WIRE[type_of(name) or ""] for name in self.parameters]
        laid_out = {
            "key": self.name.encode(),
            "text": self.sql.encode(),
            "encoders": tuple(zip(self.parameters, (wire.encode for wire in wires), strict=True)),
            "oids": tuple(wire.oid for wire in wires),
            "formats": (int(Format.BINARY),) * len(wires),  # as plain numbers, which libpq reads faster
            "takes_epoch": "epoch" in self.parameters,
        }
        for name, value in laid_out.items():
            object.__setattr__(self, name, value)


class Catalog:
    """The statements of a schema, by name."""

    def __init__(self, texts: Mapping[str, str], *, schema: str, clock: str, epoch: str = ":epoch") -> None:
        """Compile the texts of files, by file name. Raises SchemaError, which names the file, for a malformed one."""
        self._slots = {"schema": quote_schema(schema), "clock": clock, "epoch": epoch}
        self._statements: dict[str, Statement] = {}
        for file, text in texts.items():
            for statement in self._parse(file, text):
                if statement.name in self._statements:
                    raise SchemaError(f"{file}: {statement.name} is defined twice")
                self._statements[statement.name] = statement
        for statement in self:
            if statement.read_back is not None and statement.read_back not in self._statements:
                raise SchemaError(f"{statement.name}: there is no {statement.read_back} to read it back by")

    @classmethod
    def load(cls, *, schema: str, clock: str, reads_epoch: bool = False) -> Catalog:
        """Compile this package's own statements.

        `reads_epoch` says that each grant reads the epoch of its token itself, since no session knows it.
        """
        quote_schema(schema)  # refuses what is no name, and could be no key of the cache
        return _loaded(schema, clock, reads_epoch)

    def __getitem__(self, name: str) -> Statement:
        return self._statements[name]

    def __iter__(self) -> Iterator[Statement]:
        return iter(self._statements.values())

    def _parse(self, file: str, text: str) -> Iterator[Statement]:
        headers = list(_HEADER.finditer(text))
        before = text[: headers[0].start()] if headers else text
        if _without_comments(before):
            raise SchemaError(f"{file}: a statement has no name")
        for header, following in zip(headers, [*headers[1:], None], strict=True):
            name = header.group(1).strip()
            if not _NAME.fullmatch(name):
                raise SchemaError(f"{file}: a statement's name is missing or malformed")
            body = text[header.end() : following.start() if following else len(text)].strip()
            yield self._compile(f"{file}: {name}", name, body)

    def _compile(self, where: str, name: str, body: str) -> Statement:
        lines = body.splitlines()
        comment = [line for line in lines if line.startswith("--")]
        lost = _LOST.fullmatch(comment[-1]) if comment else None
        if lost is not None:
            comment.pop()
        declared = _RETURNS.search(comment[-1]) if comment else None
        if declared is None or declared.group(1) not in {returns.value for returns in Returns}:
            raise SchemaError(f"{where}: its comment does not end in what it returns")
        sql = _without_comments(body).removesuffix(";")
        if not sql or ";" in sql:
            raise SchemaError(f"{where}: it is not one statement")
        for slot in _SLOT.findall(sql):
            if slot not in self._slots:
                raise SchemaError(f"{where}: unknown slot")
        sql, parameters = _number(where, _SLOT.sub(lambda match: self._slots[match.group(1)], sql))
        return Statement(
            name,
            sql,
            parameters,
            Returns(declared.group(1)),
            writes=bool(_WRITE.search(sql)),
            read_back=lost and lost["read_back"],
            sent_again=lost is not None and lost["again"] is not None,
        )


@lru_cache(maxsize=16)
def _loaded(schema: str, clock: str, reads_epoch: bool) -> Catalog:
    """Compile this package's statements. A catalog never changes, so all stores of one schema share it."""
    folder = resources.files("nl2state_postgres") / "sql"
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    texts = {entry.name: entry.read_text(encoding="utf-8") for entry in files}
    catalog = Catalog(texts, schema=schema, clock=clock)
    if not reads_epoch:
        return catalog
    return Catalog(texts, schema=schema, clock=clock, epoch=f"({catalog['read_epoch'].sql})")


def quote_schema(schema: str) -> str:
    """Return a schema's name as an SQL identifier. Raises InvalidInputError for one that cannot be."""
    check_id("schema", schema, _SCHEMA_BYTES_MAX)
    if not schema.isprintable() or schema.startswith("pg_"):
        raise InvalidInputError("schema is not a name that a schema can have", field="schema")
    if set(schema) & set("{}:$"):
        raise InvalidInputError("schema has a character that its statements use", field="schema")
    return '"' + schema.replace('"', '""') + '"'


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--")).strip()


def _number(where: str, sql: str) -> tuple[str, tuple[str, ...]]:
    """Replace `:name` by `$n` and its type, so that a NULL and a value are planned alike."""
    parameters: list[str] = []

    def replace(piece: re.Match[str]) -> str:
        if piece["quoted"] and _PLACEHOLDER.search(piece["quoted"]):
            raise SchemaError(f"{where}: a placeholder inside quotes is not one")
        name = piece["name"]
        if name is None:
            return piece.group()
        kind = type_of(name)
        if kind not in WIRE:
            raise SchemaError(f"{where}: unknown parameter {name}")
        if name not in parameters:
            parameters.append(name)
        return f"${parameters.index(name) + 1}::{kind}"

    return _PIECE.sub(replace, sql), tuple(parameters)
