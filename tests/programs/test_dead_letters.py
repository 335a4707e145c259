"""Dead letters: newest first, by filter, retried and purged in pages (rules X8, D5)."""

from __future__ import annotations

from typing import Any

import pytest

from flowq.memory import MemoryStore
from flowq.policy import Flow, RateLimit
from flowq.programs import (
    DeadFilter,
    Failed,
    claim,
    declare,
    enqueue,
    purge,
    purge_matching,
    redrive,
    redrive_matching,
    settle,
)
from flowq.programs.commands import DeadRecord, Program, ReadDead, ReadJobs, Round
from flowq.task import TaskSpec

S = 1_000_000
FAILS = TaskSpec("fails", priority=3)
SHEDS = TaskSpec("sheds", flow=Flow(RateLimit("1/h", on_excess="drop")))


class Letters:
    """A store with dead letters: ``n`` failed at second 1, ``n`` shed at second 2."""

    def __init__(self, n: int) -> None:
        self.store = MemoryStore()
        self.run(declare([*FAILS.declarations(), *SHEDS.declarations()]), 0)
        self.failed = self.ids(enqueue([FAILS.keyed_request()] * n))
        started = self.run(claim("default", n, 1), 0).started
        self.run(settle([Failed(job.id, job.token, "boom") for job in started]), S)
        self.shed = self.ids(enqueue([SHEDS.keyed_request()] * (n + 1)))[1:]
        while self.run(claim("default", 2, 1), 2 * S).more:
            pass

    def run(self, program: Program[Any], now_us: int = 3 * S) -> Any:
        return self.store.run(program, now_us)

    def ids(self, program: Program[Any]) -> list[int]:
        return [receipt.id for receipt in self.run(program, 0)]

    def left(self) -> list[int]:
        def read() -> Program[list[DeadRecord]]:
            [rows] = yield Round((ReadDead(100_000),), True)
            return list(rows)

        return [row.id for row in self.run(read())]


@pytest.mark.parametrize(
    ("which", "failed", "shed"),
    [
        (DeadFilter(), True, True),
        (DeadFilter(task="fails"), True, False),
        (DeadFilter(task="sheds"), False, True),
        (DeadFilter(reason="rate_limit"), False, True),
        (DeadFilter(reason="codel"), False, False),
        (DeadFilter(before_us=2 * S), True, False),
        (DeadFilter(before_us=S), False, False),
        (DeadFilter(task="fails", reason="rate_limit"), False, False),
    ],
)
@pytest.mark.parametrize("n", [3, 1_500])
def test_a_filter_names_what_is_purged(which: DeadFilter, failed: bool, shed: bool, n: int) -> None:  # X8
    letters = Letters(n)
    gone = [*letters.failed * failed, *letters.shed * shed]
    assert letters.run(purge_matching(which)) == len(gone)
    kept = {*letters.failed, *letters.shed} - set(gone)
    assert letters.left() == sorted(kept, reverse=True)


def test_a_limit_takes_the_newest() -> None:  # X8
    letters = Letters(1_200)
    assert letters.run(purge_matching(DeadFilter(limit=1_201))) == 1_201
    assert letters.left() == letters.failed[-2::-1]


def test_what_is_retried_by_filter_is_a_fresh_job_and_keeps_its_fields() -> None:  # X8, D5, B108
    letters = Letters(1_100)
    renewed = letters.run(redrive_matching(DeadFilter(task="fails")))
    assert sorted(renewed) == letters.failed
    assert letters.left() == letters.shed[::-1]

    def read(id: int) -> Program[Any]:
        [records] = yield Round((ReadJobs((id,)),), True)
        return records[id]

    job = letters.run(read(renewed[letters.failed[0]]))
    assert (job.state, job.task, job.failures, job.token, job.run_at_us) == ("pending", "fails", 0, 0, 3 * S)


def test_ids_that_are_no_dead_letters_are_passed_over() -> None:  # X8
    letters = Letters(2)
    assert letters.run(purge([letters.failed[0], letters.failed[0], 10**9])) == 1
    assert letters.run(redrive([letters.failed[0], 10**9])) == {}
    assert letters.left() == [*letters.shed[::-1], letters.failed[1]]
