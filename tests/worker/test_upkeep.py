"""What a worker does for all: lapsed jobs in pages, partitions once a day, and neither while it may be dead itself."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from flowq import DatabaseUnreachable, Queue, StoreError
from flowq.postgres.connection import AsyncLink
from flowq.postgres.driver import PostgresStore
from flowq.programs import Maintained
from flowq.worker import upkeep

LEASE_US = 30_000


class Script:
    """A link that answers as told, and then ends the test."""

    def __init__(self, *answers: Maintained | Exception) -> None:
        self.answers = list(answers)

    async def run(self, _: Any) -> Maintained:
        if not self.answers:
            raise asyncio.CancelledError
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def run(link: Any, dsn: str = "", sure: Any = lambda: True) -> list[None]:
    told: list[None] = []
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(upkeep.keep_up(link, dsn, LEASE_US, sure, told.append))
    return told


def test_it_goes_on_at_once_while_there_is_more() -> None:
    page, last = Maintained((1, 2), (), True), Maintained((3,), (4,), False)
    assert run(Script(page, page, last)) == [None] * 3


@pytest.mark.parametrize("error", [DatabaseUnreachable("gone"), StoreError("refused")])
def test_an_error_ends_only_one_search(error: Exception) -> None:
    assert run(Script(error, Maintained((1,), (), False))) == [None]


def test_it_waits_while_the_workers_own_lease_is_in_doubt() -> None:
    doubts = iter([False, False, True, False, True])
    link = Script(Maintained((1,), (), False))
    assert run(link, sure=lambda: next(doubts)) == [None]
    assert next(doubts, "none left") == "none left"


def test_it_makes_the_archives_partitions(
    dsn: str, queue: Queue, db: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = "select count(*) from pg_inherits where inhparent = 'flowq.archive'::regclass"
    last = (
        "select relname from pg_class where relname ~ '^archive_20' and relkind = 'r' order by 1 desc limit 1"
    )
    row = db.execute(last).fetchone()
    assert row is not None
    before = db.execute(partitions).fetchone()
    db.execute(f'drop table flowq."{row[0]}"'.encode())
    monkeypatch.setattr(upkeep, "_PARTITIONS_S", 0.0)

    async def until_made() -> None:
        link = AsyncLink(dsn, PostgresStore(queue.namespace))
        keeping = asyncio.create_task(upkeep.keep_up(link, dsn, LEASE_US, lambda: True, lambda _: None))
        try:
            async with asyncio.timeout(20):
                while (await asyncio.to_thread(lambda: db.execute(partitions).fetchone())) != before:
                    pass
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await link.close()

    asyncio.run(until_made())
