"""Made-up deliveries that look like a code host's: a few repositories get most of them, some deliveries have none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from uuid import UUID

from nl2state import Json

__all__ = ["generate", "write"]

_ACCOUNTS = ("acme", "blue-river", "cedar-labs", "delta-works", "Éclair", "foxglove", "granite", "harbor-ci", "indigo")
_PEOPLE = ("ada", "barbara", "edsger", "frances", "grace", "hedy", "katherine", "leslie", "margaret", "radia")
_WORDS = ("add", "fix", "remove", "lease", "retry", "order", "invoice", "timeout", "größe", "cache", "test", "docs")
_REPOSITORY_EVENTS = ("push", "issues", "pull_request", "issue_comment", "check_run", "release", "star", "status")
_OTHER_EVENTS = ("organization", "membership", "marketplace_purchase", "security_advisory")
_REPOSITORIES_MAX = 200
_WITHOUT_REPOSITORY = 0.06
_START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


def write(path: Path, deliveries: int, seed: int) -> None:
    """Write deliveries as JSON lines. The same seed makes the same file."""
    with path.open("w", encoding="utf-8") as file:
        for delivery in generate(deliveries, seed):
            file.write(json.dumps(delivery, ensure_ascii=False, separators=(",", ":")) + "\n")


def generate(deliveries: int, seed: int) -> Iterator[dict[str, Json]]:
    """Yield deliveries. The n-th repository gets about 1/n as many as the first."""
    random = Random(seed)  # noqa: S311  # no secret
    count = max(3, min(_REPOSITORIES_MAX, deliveries // 10))
    repositories = [_repository(random, number) for number in range(count)]
    weights = [1 / (rank + 1) for rank in range(count)]
    at = _START
    for number in range(deliveries):
        at += timedelta(seconds=random.expovariate(0.5))
        if random.random() < _WITHOUT_REPOSITORY:
            event, payload = _without_repository(random)
        else:
            event = random.choice(_REPOSITORY_EVENTS)
            repository = random.choices(repositories, weights)[0]
            payload = {**_subject(random, event, number, at), "repository": repository, "sender": _person(random)}
        yield {"delivery": str(UUID(int=random.getrandbits(128), version=4)), "event": event, "payload": payload}


def _repository(random: Random, number: int) -> Json:
    login = _ACCOUNTS[number % len(_ACCOUNTS)]
    name = f"{random.choice(_WORDS)}-{random.choice(_WORDS)}-{number}"
    return {
        "id": 10**9 + number,
        "name": name,
        "full_name": f"{login}/{name}",
        "private": random.random() < 0.3,
        "owner": {"login": login, "id": 1000 + number % len(_ACCOUNTS), "type": "Organization"},
        "html_url": f"https://code.example/{login}/{name}",
        "description": _sentence(random, 6),
        "homepage": None,
        "topics": random.sample(_WORDS, 3),
    }


def _without_repository(random: Random) -> tuple[str, dict[str, Json]]:
    event = random.choice(_OTHER_EVENTS)
    payload: dict[str, Json] = {"action": "created", "note": _sentence(random, 12)}
    if event != "security_advisory":
        payload["sender"] = _person(random)
    if event in ("organization", "membership"):
        payload["organization"] = {"login": random.choice(_ACCOUNTS), "description": None}
    return event, payload


def _subject(random: Random, event: str, number: int, at: datetime) -> dict[str, Json]:
    if event == "push":
        commits: list[Json] = [_commit(random, at) for _ in range(random.randint(1, 4))]
        return {"ref": "refs/heads/main", "forced": False, "commits": commits}
    body: dict[str, Json] = {
        "id": 2**53 + number,
        "number": number,
        "title": _sentence(random, 5),
        "body": _sentence(random, 40) if random.random() < 0.8 else None,
        "labels": [{"name": word, "color": f"{random.getrandbits(24):06x}"} for word in random.sample(_WORDS, 2)],
        "created_at": at.isoformat(),
        "user": _person(random),
    }
    return {"action": random.choice(("opened", "edited", "closed")), event.rstrip("s"): body}


def _commit(random: Random, at: datetime) -> Json:
    return {
        "id": f"{random.getrandbits(160):040x}",
        "message": _sentence(random, 7),
        "timestamp": at.isoformat(),
        "author": _person(random),
        "modified": [f"src/{word}.py" for word in random.sample(_WORDS, 2)],
    }


def _person(random: Random) -> Json:
    number = random.randrange(len(_PEOPLE))
    return {"login": _PEOPLE[number], "id": 500 + number, "type": "User", "site_admin": False}


def _sentence(random: Random, words: int) -> str:
    return " ".join(random.choices(_WORDS, k=words))
