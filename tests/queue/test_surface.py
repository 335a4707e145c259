"""Queue and AsyncQueue are one surface: the same names, parameters and defaults, and the same answers."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
from typing import Any

import pytest

import flowq
from flowq import AsyncQueue, JobState, Queue, UnknownJob, UnknownTask, Worker
from flowq.handles import AsyncJob, Job
from flowq.queue import AsyncTask, Task


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in vars(kind).items() if not name.startswith("_")}


def inherited(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize(("one", "other"), [(Queue, AsyncQueue), (Job, AsyncJob), (Task, AsyncTask)])
def test_the_two_surfaces_agree(one: type, other: type) -> None:
    names = {name for name, member in inherited(one).items() if callable(member)}
    assert names == {name for name, member in inherited(other).items() if callable(member)}
    for name in names:
        assert parameters(getattr(one, name)) == parameters(getattr(other, name)), name


def test_an_async_queue_does_what_a_queue_does(dsn: str, namespace: str) -> None:
    async def run() -> None:
        async with AsyncQueue(dsn, namespace=namespace) as queue:

            @queue.task(idempotent=True)
            async def charge(customer: int) -> int:
                return customer

            @queue.task(rate_limit="1/h", on_excess="drop")
            async def sample() -> None: ...

            first, second = await charge.delay(42), await charge.delay(42)
            assert (second.id, second.outcome) == (first.id, "coalesced")
            batch = await queue.enqueue_many([{"task": "sample"}, {"task": "sample"}])
            queue.set_queue_codel("other", target="500ms", interval="5s")
            await Worker(queue, burst=True).run_async()
            assert await first.result("5s") == 42
            assert await first.state() is JobState.SUCCEEDED
            [letter] = await queue.dead_letters()
            assert letter.id == batch[1].id
            with pytest.raises(flowq.JobShed):
                await batch[1].result("5s")
            renewed = await queue.retry_dead([letter.id])
            assert (await queue.job(renewed[letter.id])).state == "pending"
            assert await queue.retry_dead(task="sample", limit=1) == {}
            assert await queue.purge_dead(reason="rate_limit") == 0
            with pytest.raises(flowq.ConfigurationError, match="purge_dead takes ids or a filter"):
                await queue.purge_dead([1], task="sample")

    asyncio.run(run())


@pytest.mark.parametrize("closes", [True, False])
def test_a_queue_may_be_used_from_one_loop_after_another(dsn: str, namespace: str, closes: bool) -> None:
    queue = AsyncQueue(dsn, namespace=namespace)

    @queue.task()
    async def note() -> None: ...

    async def once() -> int:
        job = await note.delay()
        if closes:
            await queue.close()
        return job.id

    assert asyncio.run(once()) < asyncio.run(once())


def test_by_name_a_declared_task_brings_its_defaults(queue: Queue) -> None:
    """F117."""

    @queue.task(queue="mail", priority=7, idempotent=True)
    def send(to: str) -> None: ...

    by_name, called = queue.enqueue("send", {"to": "ann"}), send.delay("ann")
    assert called.id == by_name.id
    assert queue.job(called.id).queue == "mail"


def test_payload_or_arguments_not_both(queue: Queue) -> None:
    with pytest.raises(TypeError, match="can't both be given"):
        queue.enqueue("t", {"a": 1}, args=[1])
    with pytest.raises(TypeError, match="is not an option of a call"):
        queue.enqueue("t", dely="1s")
    with pytest.raises(TypeError, match="item 1 must be a mapping"):
        queue.enqueue_many([{"task": "t"}, {"name": "t"}])


def test_unknown_names_and_ids_have_errors_of_their_own(queue: Queue) -> None:
    with pytest.raises(UnknownTask, match="declared: none"):
        queue.handler("nobody")
    with pytest.raises(UnknownJob):
        queue.job(1 << 40)


def test_a_call_that_does_not_fit_the_signature_is_refused(queue: Queue) -> None:
    @queue.task()
    def add(a: int, b: int) -> int:
        return a + b

    with pytest.raises(TypeError, match="add"):
        add.delay(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'c'"):
        queue.enqueue("add", {"a": 1, "b": 2, "c": 3})


def test_the_public_names() -> None:
    assert sorted(set(flowq.__all__) - {"__version__"}) == sorted(flowq._HOME_OF)
    for name in flowq.__all__:
        assert getattr(flowq, name) is not None
    assert set(flowq.__all__) <= set(dir(flowq))
    with pytest.raises(AttributeError, match="no attribute 'Qeue'"):
        flowq.Qeue  # noqa: B018


def test_importing_costs_nothing() -> None:
    code = """
import sys, flowq
from flowq import Flow, RateLimit, CoDel, MemoryStore, JobState, Retry, QueueFull
assert "psycopg" not in sys.modules, "the policies need no driver"
assert "asyncio" not in sys.modules
flowq.Queue("postgresql:///nowhere")
assert "psycopg" not in sys.modules, "nor does a queue that nobody uses"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
