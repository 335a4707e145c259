"""memory:// is a real store, with a clock that the test moves (rule S5)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flowq
from flowq import AsyncQueue, ConfigurationError, JobFailed, JobState, Queue, ResultTimeout
from flowq.job import Outcome


@pytest.fixture
def memory() -> Queue:
    return Queue("memory://")


def test_debounce_runs_once_after_the_burst(memory: Queue) -> None:
    ran: list[int] = []

    @memory.task(debounce="10s", debounce_key="{id}", debounce_max_wait="1m")
    def index(id: int) -> None:
        ran.append(id)

    first = index.delay(1)
    memory.clock.advance("6s")
    assert index.delay(1).outcome is Outcome.MERGED
    memory.clock.advance("6s")
    assert (memory.run_due(), ran) == (0, [])
    memory.clock.advance("4s")
    assert (memory.run_due(), ran, first.state()) == (1, [1], JobState.SUCCEEDED)


def test_coalesce(memory: Queue) -> None:
    @memory.task(idempotent=True)
    def double(n: int) -> int:
        return n * 2

    first, again = double.delay(3), double.delay(3)
    assert (again.id, again.outcome) == (first.id, Outcome.COALESCED)
    assert first.result() == 6
    assert double.delay(3).outcome is Outcome.ACCEPTED


def test_a_rate_limit_and_the_clock(memory: Queue) -> None:
    @memory.task(rate_limit="1/s", burst=2)
    def sample() -> None: ...

    memory.enqueue_many([{"task": "sample"}] * 5)
    ran = [memory.run_due()]
    for _ in range(3):
        memory.clock.advance("1s")
        ran.append(memory.run_due())
    assert ran == [2, 1, 1, 1]


def test_a_retry_waits_for_the_moved_clock(memory: Queue) -> None:
    @memory.task(max_retries=1, retry_delays=["30s"])
    def flaky() -> int:
        job = flowq.current_job()
        if job.failures == 0:
            raise ValueError("once")
        return job.attempt

    job = flaky.delay()
    with pytest.raises(ResultTimeout):
        job.result()
    memory.clock.advance("29s")
    assert memory.run_due() == 0
    memory.clock.advance("1s")
    assert job.result() == 2


def test_a_dead_letter(memory: Queue) -> None:
    @memory.task(max_retries=0)
    def broken() -> None:
        raise ValueError("why")

    job = broken.delay()
    with pytest.raises(JobFailed, match="why"):
        job.result()
    assert [letter.id for letter in memory.dead_letters()] == [job.id]


def test_a_result_never_sleeps(memory: Queue) -> None:
    job = memory.enqueue("later", delay="1h")
    with pytest.raises(ResultTimeout):
        job.result("1d")


def test_jobs_outlive_close(memory: Queue) -> None:
    with memory:
        job = memory.enqueue("t")
    assert job.state() is JobState.PENDING


def test_no_transaction_no_worker_no_clock_elsewhere(memory: Queue) -> None:
    import psycopg

    with pytest.raises(ConfigurationError, match="memory://"):
        memory.enqueue("t", connection=psycopg.Connection.__new__(psycopg.Connection))
    with pytest.raises(ConfigurationError, match="run_due"):
        _ = memory.server
    with pytest.raises(ConfigurationError, match="memory://"):
        Queue("postgresql://localhost/app").run_due()


def test_the_async_queue_does_the_same() -> None:
    async def run() -> tuple[Any, int]:
        queue = AsyncQueue("memory://")

        @queue.task()
        async def double(n: int) -> int:
            await asyncio.sleep(0)
            return n * 2

        job = await double.delay(2)
        result = await job.result()
        await queue.enqueue("double", {"n": 1}, delay="5s")
        queue.clock.advance("5s")
        return result, await queue.run_due()

    assert asyncio.run(run()) == (4, 1)


def test_the_fixture_is_one_line_in_conftest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["flowq.testing"]\n', encoding="utf-8")
    (tmp_path / "test_it.py").write_text(
        "def test_it(flowq_queue):\n    flowq_queue.enqueue('t')\n    assert flowq_queue.clock.now.year == 2025\n",
        encoding="utf-8",
    )
    root = Path(flowq.__file__).parent.parent
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    answer = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
