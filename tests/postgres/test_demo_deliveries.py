"""The demo's deliveries: their routing, the generator, the input file, the digest, and the check in the end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nl2state import Json, Value
from nl2state_postgres.demo.check import Damage, compare
from nl2state_postgres.demo.deliveries import Delivery, InputError, parse, read
from nl2state_postgres.demo.generator import generate
from nl2state_postgres.demo.record import apply


def made(count: int, seed: int = 1) -> list[Delivery]:
    return [parse(json.dumps(delivery).encode()) for delivery in generate(count, seed)]


def delivery(event: str = "push", *, identity: str = "d1", **payload: Json) -> Delivery:
    return Delivery(identity, event, payload)


REPOSITORY: Json = {"full_name": "acme/shop", "owner": {"login": "acme"}}
SENDER: Json = {"login": "ada"}


class TestRouting:
    @pytest.mark.parametrize(
        ("payload", "account", "record"),
        [
            ({"repository": REPOSITORY, "organization": {"login": "o"}, "sender": SENDER}, "acme", "acme/shop"),
            ({"organization": {"login": "blue"}, "sender": SENDER}, "blue", "blue"),
            ({"repository": None, "organization": {}, "sender": SENDER}, "ada", "ada"),
            ({"repository": "not an object", "sender": {"login": 7}}, "push", "push"),
            ({}, "push", "push"),
        ],
    )
    def test_a_delivery_without_a_repository_falls_back(
        self, payload: dict[str, Json], account: str, record: str
    ) -> None:
        found = Delivery("d1", "push", payload)
        assert (found.account, found.record) == (account, record)


class TestGenerator:
    def test_a_seed_makes_the_same_deliveries(self) -> None:
        assert list(generate(50, 7)) == list(generate(50, 7))
        assert list(generate(50, 7)) != list(generate(50, 8))

    def test_some_records_are_hot_and_some_deliveries_have_no_repository(self) -> None:
        found = made(2_000)
        records = Counter(delivery.record for delivery in found)
        assert records.most_common(1)[0][1] > 10 * records.total() / len(records)
        assert len({delivery.account for delivery in found}) > 5
        assert 0 < sum("repository" not in delivery.payload for delivery in found) < 400
        assert len({delivery.id for delivery in found}) == len(found)


class TestDigest:
    def digest(self, deliveries: list[Delivery]) -> Json:
        state: Value = None
        for each in deliveries:
            state = apply(state, each)
        assert isinstance(state, dict)
        return state["digest"]

    def test_it_depends_on_every_delivery_and_not_on_their_order(self) -> None:
        found = made(5)
        whole = self.digest(found)
        assert self.digest(found[::-1]) == whole
        for each in found:
            assert self.digest([other for other in found if other is not each]) != whole
            assert self.digest([*found, each]) != whole

    def test_it_depends_on_all_of_a_delivery(self) -> None:
        others = [delivery("pull"), delivery(identity="d2"), delivery(n=1), delivery(n=None)]
        assert len({str(self.digest([each])) for each in [delivery(), *others]}) == 5

    def test_applying_changes_no_earlier_state(self) -> None:
        first = apply(None, delivery())
        before = json.dumps(first)
        assert apply(first, delivery(identity="d2"))["counts"] == {"push": 2}
        assert json.dumps(first) == before


class TestInput:
    good = b'{"delivery":"a","event":"push","payload":{"n":1}}\n'

    @pytest.mark.parametrize(
        "line",
        [
            b"nonsense",
            b"[]",
            b"null",
            b'{"delivery":"b","event":"push"}',
            b'{"delivery":"b","event":"push","payload":[]}',
            b'{"delivery":7,"event":"push","payload":{}}',
            b'{"delivery":"","event":"push","payload":{}}',
            b'{"delivery":"b","event":"pu\\nsh","payload":{}}',
            b'{"delivery":"b","event":"push","payload":{"n":NaN}}',
            b'{"delivery":"b","event":"push","payload":{"s":"\\ud800"}}',
            b'{"delivery":"b","event":"push","payload":{"s":"\xff"}}',
            b'{"delivery":"b","event":"push","payload":{"sender":{"login":"' + b"x" * 300 + b'"}}}',
            b'{"delivery":"b","event":"push","payload":{"n":' + b"[" * 100 + b"]" * 100 + b"}}",
            b'{"delivery":"b","event":"push","payload":{"n":' + b"[" * 100_000 + b"}}",
            b'{"delivery":"b","event":"push","payload":{"n":' + b"9" * 5_000 + b"}}",
            b'{"delivery":"a","event":"push","payload":{"n":2}}',
        ],
        ids=lambda line: line[:60].decode(errors="replace"),
    )
    def test_a_malformed_line_is_named_by_its_number(self, tmp_path: Path, line: bytes) -> None:
        path = tmp_path / "input.jsonl"
        path.write_bytes(self.good + b"\n" + line + b"\n")
        with pytest.raises(InputError, match=r"input\.jsonl, line 3: ") as raised:
            list(read(path))
        assert len(str(raised.value)) < 400 + len(str(path))

    def test_each_delivery_is_read_once_with_its_place(self, tmp_path: Path) -> None:
        path = tmp_path / "input.jsonl"
        last = '{"event":"öffnen","payload":{},"delivery":"b"}'.encode()
        path.write_bytes(self.good + b" \r\n" + self.good + last)
        found = list(read(path))
        assert [line.delivery.id for line in found] == ["a", "b"]
        for line in found:
            assert parse(path.read_bytes()[line.offset : line.offset + line.length]) == line.delivery

    def test_a_folder_is_no_input(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=str(tmp_path)):
            list(read(tmp_path))


class TestCheck:
    """The check is of what is stored, so that it finds damage whatever made it."""

    def stored(self, deliveries: list[Delivery]) -> Callable[[str, str], Value]:
        states: dict[tuple[str, str], Value] = {}
        for each in deliveries:
            place = (each.account, each.record)
            states[place] = apply(states.get(place), each)
        return lambda account, record: states.get((account, record))

    def test_all_of_them_once_in_any_order_is_no_damage(self) -> None:
        assert compare(made(300), self.stored(made(300)[::-1])) == Damage(0, 0)

    def test_a_lost_and_a_doubled_delivery_are_found(self) -> None:
        found = made(300)
        assert compare(found, self.stored(found[1:])) == Damage(1, 0)
        assert compare(found, self.stored([*found, found[0]])) == Damage(0, 1)
        assert compare(found, self.stored([*found[3:], found[10], found[10]])).lost >= 1
        assert compare(found, lambda *_: None) == Damage(300, 0)

    def test_one_lost_and_one_doubled_of_the_same_event_and_record_are_found(self) -> None:
        first, second = delivery(), delivery(identity="d2")
        assert compare([first, second], self.stored([first, first])) == Damage(1, 1)
