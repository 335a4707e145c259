"""What a worker does with jobs that succeed, fail, or can't be run."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
from typing import Any

import psycopg
import pytest

from flowq import (
    AsyncQueue,
    ConfigurationError,
    JobFailed,
    JobState,
    Queue,
    Retry,
    Worker,
)
from flowq.policy import Flow
from worker.working import drain, eventually, working

ROUND_TRIPS: list[Any] = [
    None,
    0,
    -1.5,
    "text",
    "ünïcødé \\u0000 \U0001f600",
    [],
    {},
    [1, [2, {"a": None}]],
    True,
]


class TestResults:
    @pytest.mark.parametrize("value", ROUND_TRIPS)
    def test_a_result_comes_back_as_it_was(self, queue: Queue, value: Any) -> None:
        @queue.task()
        def echo(value: Any) -> Any:
            return value

        job = echo.delay(value)
        drain(queue)
        assert job.result("5s") == value
        assert job.state() is JobState.SUCCEEDED

    def test_coroutines_and_functions_run_side_by_side(self, queue: Queue) -> None:
        met = threading.Barrier(2, timeout=20)

        @queue.task()
        async def coroutine(n: int) -> int:
            await asyncio.to_thread(met.wait)
            return n + 1

        @queue.task()
        def function(n: int) -> int:
            met.wait()
            return n + 2

        first, second = coroutine.delay(1), function.delay(1)
        drain(queue)
        assert (first.result("5s"), second.result("5s")) == (2, 3)

    def test_an_async_queue_works_too(self, dsn: str, namespace: str) -> None:
        queue = AsyncQueue(dsn, namespace=namespace)

        @queue.task()
        async def double(n: int) -> int:
            return 2 * n

        async def run() -> int:
            job = await double.delay(21)
            await Worker(queue, burst=True).run_async()
            found: int = await job.result("5s")
            await queue.close()
            return found

        assert asyncio.run(run()) == 42

    def test_handlers_may_enqueue(self, queue: Queue) -> None:
        @queue.task()
        def parent() -> int:
            return child.delay(20).id

        @queue.task()
        async def child(n: int) -> int:
            return n + 1

        job = parent.delay()
        drain(queue)
        assert json.loads(queue.job(job.result("5s")).result or "") == 21

    def test_a_function_that_returns_an_awaitable_is_awaited(self, queue: Queue) -> None:
        async def later() -> str:
            return "now"

        @queue.task()
        def wrapped() -> Any:
            return later()

        job = wrapped.delay()
        drain(queue)
        assert job.result("5s") == "now"

    @pytest.mark.parametrize("awaited", [True, False])
    def test_a_context_variable_of_one_job_is_not_seen_by_the_next(self, queue: Queue, awaited: bool) -> None:
        user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")

        def see_and_set(name: str) -> str:
            seen = user.get()
            user.set(name)
            return seen

        async def see_and_set_awaited(name: str) -> str:
            return see_and_set(name)

        task = queue.task(name="t")(see_and_set_awaited if awaited else see_and_set)
        jobs = [task.delay(f"user {n}") for n in range(20)]
        drain(queue, concurrency=10)
        assert {job.result("5s") for job in jobs} == {"nobody"}


class TestFailures:
    @pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt])
    def test_an_exit_in_what_a_function_returns_fails_its_job_alone(
        self, queue: Queue, leave: type[BaseException]
    ) -> None:
        async def later() -> None:
            raise leave("out")

        @queue.task(max_retries=0)
        def leaves() -> Any:
            return later()

        @queue.task
        def stays() -> str:
            return "here"

        gone, here = leaves.delay(), stays.delay()
        drain(queue)
        assert here.result(timeout="5s") == "here"
        with pytest.raises(JobFailed, match="out"):
            gone.result(timeout="5s")

    def test_a_failing_handler_is_retried_and_then_dead_lettered(self, queue: Queue) -> None:
        runs = []

        @queue.task(max_retries=2, retry_delays=["10ms", "20ms"])
        def fails(n: int) -> None:
            runs.append(n)
            raise ValueError(f"no {n}\x00 \udc80")

        job = fails.delay(7)
        drain(queue)
        assert runs == [7, 7, 7]
        [letter] = queue.dead_letters()
        assert (letter.id, letter.task, letter.reason, letter.metadata) == (job.id, "fails", None, None)
        assert (letter.args, letter.retry_count) == ([7], 2)
        assert letter.error.startswith("Traceback (most recent call last):")
        assert letter.error.endswith("ValueError: no 7\ufffd ?\n")
        assert "execution.py" not in letter.error
        with pytest.raises(JobFailed, match="no 7"):
            job.result("5s")
        record = queue.job(job.id)
        assert (record.state, record.token, record.failures, record.crashes) == ("failed", 3, 3, 0)

    def test_a_retry_that_succeeds_gives_the_result(self, queue: Queue) -> None:
        runs = []

        @queue.task(flow=Flow(Retry(1, delays=["1ms"])))
        async def flaky() -> int:
            runs.append(1)
            if len(runs) == 1:
                raise OSError("first")
            return len(runs)

        job = flaky.delay()
        drain(queue)
        assert job.result("5s") == 2
        assert queue.dead_letters() == []

    def test_a_jobs_own_max_retries_replaces_the_tasks(self, queue: Queue) -> None:
        runs = []

        @queue.task(max_retries=3, retry_delays=["1ms"])
        def fails() -> None:
            runs.append(1)
            raise ValueError("no")

        fails.apply_async(max_retries=0)
        drain(queue)
        assert runs == [1]

    @pytest.mark.parametrize("awaited", [True, False])
    @pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
    def test_whatever_a_handler_raises_ends_only_its_job(
        self, queue: Queue, kind: type[BaseException], awaited: bool
    ) -> None:
        def raises() -> None:
            raise kind("stop")

        async def raises_awaited() -> None:
            raise kind("stop")

        task = queue.task(name="raises", max_retries=0)(raises_awaited if awaited else raises)

        @queue.task()
        def fine() -> str:
            return "fine"

        bad, good = task.delay(), fine.delay()
        drain(queue)
        assert good.result("5s") == "fine"
        with pytest.raises(JobFailed, match=kind.__name__):
            bad.result("5s")

    def test_a_task_that_cancels_itself_harms_no_other(self, queue: Queue) -> None:
        @queue.task(max_retries=0)
        async def cancels_itself() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

        @queue.task(max_retries=0)
        async def fine(n: int) -> int:
            await asyncio.sleep(0)
            return n

        cancels_itself.delay()
        jobs = [fine.delay(n) for n in range(3)]
        drain(queue)
        assert [job.result("5s") for job in jobs] == [0, 1, 2]

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            (object(), "must be JSON"),
            ({1, 2}, "must be JSON"),
            ("a\x00b", "NUL"),
            ("\ud800", "lone surrogate"),
        ],
        ids=["object", "set", "NUL", "surrogate"],
    )
    def test_a_result_that_json_cannot_carry_fails_without_a_retry(
        self, queue: Queue, value: Any, message: str
    ) -> None:
        runs = []

        @queue.task(max_retries=5, retry_delays=["1ms"])
        def returns() -> Any:
            runs.append(1)
            return value

        job = returns.delay()
        drain(queue)
        assert runs == [1]
        with pytest.raises(JobFailed, match=f"(?s)PayloadError: result of task 'returns'.*{message}"):
            job.result("5s")

    def test_a_task_that_is_not_declared_fails_for_good(self, queue: Queue) -> None:
        job = queue.enqueue("nobody_knows", args=[1])
        drain(queue)
        [letter] = queue.dead_letters()
        assert letter.id == job.id
        assert letter.error.startswith("UnknownTask: no task 'nobody_knows' is declared")

    def test_arguments_that_do_not_fit_are_a_failure_of_the_handler(self, queue: Queue, dsn: str) -> None:
        @queue.task(max_retries=0)
        def takes_one(n: int) -> None: ...

        with Queue(dsn, namespace=queue.namespace) as other:
            job = other.enqueue("takes_one", args=[1, 2, 3], max_retries=0)
        drain(queue)
        with pytest.raises(JobFailed, match="TypeError"):
            job.result("5s")

    def test_the_end_of_a_long_error_is_kept(self, queue: Queue) -> None:
        @queue.task(max_retries=0)
        def long() -> None:
            raise ValueError("x" * 50_000 + " the end")

        long.delay()
        drain(queue)
        [letter] = queue.dead_letters()
        assert len(letter.error) < 10_001
        assert letter.error.endswith(" the end\n")


class TestSlots:
    @pytest.mark.parametrize("awaited", [True, False])
    def test_no_more_jobs_are_claimed_than_there_are_slots(
        self, queue: Queue, db: psycopg.Connection, awaited: bool
    ) -> None:
        """Rule A4."""
        gate = threading.Event()

        def waits() -> None:
            gate.wait(30)

        async def waits_awaited() -> None:
            await asyncio.to_thread(gate.wait, 30)

        task = queue.task(name="waits")(waits_awaited if awaited else waits)
        jobs = [task.delay() for _ in range(7)]

        def running() -> int:
            sql = "select count(*) from flowq.job where namespace = %s and state = 'running'"
            row = db.execute(sql, (queue.namespace,)).fetchone()
            assert row is not None
            return int(row[0])

        with working(queue, concurrency=3):
            eventually(lambda: running() == 3)
            late = queue.enqueue("waits")
            assert running() == 3
            gate.set()
            for job in [*jobs, late]:
                job.result("10s")

    def test_queues_share_the_slots(self, queue: Queue) -> None:
        """Rule A5: a busy queue never starves another."""
        order: list[str] = []

        @queue.task()
        async def note(name: str) -> None:
            order.append(name)

        queue.enqueue_many([{"task": "note", "args": ["busy"], "queue": "busy"}] * 50)
        queue.enqueue_many([{"task": "note", "args": ["calm"], "queue": "calm"}] * 5)
        drain(queue, "busy", "calm", "empty", concurrency=1)
        assert len(order) == 55
        assert order[:12].count("calm") == 5

    def test_what_one_queue_leaves_over_goes_to_the_others(self, queue: Queue) -> None:
        met = threading.Barrier(8, timeout=20)

        @queue.task()
        def meet() -> None:
            met.wait()

        jobs = [meet.apply_async(queue="busy") for _ in range(7)] + [meet.apply_async(queue="calm")]
        drain(queue, "busy", "calm", "empty", concurrency=8)
        assert all(job.state() is JobState.SUCCEEDED for job in jobs)

    def test_higher_priority_starts_first(self, queue: Queue) -> None:
        order: list[int] = []

        @queue.task()
        async def note(n: int) -> None:
            order.append(n)

        for n in (0, 5, -1, 5, 0):
            note.apply_async((n,), priority=n)
        drain(queue, concurrency=1)
        assert order == [5, 5, 0, 0, -1]


class TestParameters:
    def test_they_are_checked(self) -> None:
        queue = Queue("postgresql:///nowhere")
        with pytest.raises(TypeError, match="queues"):
            Worker(queue, "default")
        with pytest.raises(ConfigurationError, match="concurrency must be >= 1: 0"):
            Worker(queue, concurrency=0)
        with pytest.raises(ConfigurationError, match="lease"):
            Worker(queue, lease=0)

    def test_a_worker_runs_once_at_a_time(self, queue: Queue) -> None:
        with working(queue) as worker, pytest.raises(RuntimeError, match="runs already"):
            asyncio.run(worker.run_async())

    def test_stopped_before_it_runs_it_does_nothing(self, queue: Queue) -> None:
        @queue.task()
        def add() -> None: ...

        job = add.delay()
        worker = Worker(queue)
        worker.stop()
        worker.run()
        assert job.state() is JobState.PENDING
