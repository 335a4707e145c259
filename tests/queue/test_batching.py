"""Calls of an AsyncQueue that are made while another is under way go out together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowq import AsyncQueue, StoreError


def watched(queue: AsyncQueue) -> list[int]:
    """The number of calls of each enqueue program that the queue runs from now on."""
    sizes: list[int] = []
    send = queue._send_batch

    async def counted(batch: Any) -> None:
        sizes.append(len(batch))
        await send(batch)

    queue._send_batch = counted  # type: ignore[method-assign]
    return sizes


def run_with(dsn: str, namespace: str, body: Callable[[AsyncQueue], Any]) -> Any:
    async def run() -> Any:
        async with AsyncQueue(dsn, namespace=namespace) as queue:
            return await body(queue)

    return asyncio.run(run())


def test_a_thousand_calls_are_few_programs_in_order(dsn: str, namespace: str) -> None:
    async def body(queue: AsyncQueue) -> None:
        sizes = watched(queue)
        jobs = await asyncio.gather(*(queue.enqueue("t", {"n": n}) for n in range(1_000)))
        assert sum(sizes) == 1_000
        assert len(sizes) <= 3
        ids = [job.id for job in jobs]
        assert ids == sorted(set(ids))
        records = await queue.jobs(ids)
        assert [f'"n":{n}' in records[id].payload.replace(" ", "") for n, id in enumerate(ids)] == [
            True
        ] * 1_000

    run_with(dsn, namespace, body)


def test_calls_in_turn_go_alone_and_keyed_ones_never_join(dsn: str, namespace: str) -> None:
    async def body(queue: AsyncQueue) -> None:
        sizes = watched(queue)
        for _ in range(3):
            await queue.enqueue("t")
        assert sizes == [1, 1, 1]
        a, b = await asyncio.gather(queue.enqueue("t", unique_key="k"), queue.enqueue("t", unique_key="k"))
        assert a.id == b.id
        assert sizes == [1, 1, 1]

    run_with(dsn, namespace, body)


def test_one_calls_error_is_not_its_neighbours(dsn: str, namespace: str) -> None:
    """The store refuses an instant that it can't hold; the others go out one by one."""

    async def body(queue: AsyncQueue) -> None:
        def enqueue(n: int) -> Any:
            request = queue._request("t", {"n": n}, None, None, {})
            if n == 1:
                request = request._replace(job=request.job._replace(payload="no JSON"))
            return queue._joined(request)

        answers = await asyncio.gather(*(enqueue(n) for n in range(3)), return_exceptions=True)
        assert isinstance(answers[1], StoreError)
        found = await queue.jobs([answers[0].id, answers[2].id])
        assert len(found) == 2

    run_with(dsn, namespace, body)


def test_a_cancelled_caller_takes_nobody_along(dsn: str, namespace: str) -> None:
    async def body(queue: AsyncQueue) -> None:
        tasks = [asyncio.create_task(queue.enqueue("t", {"n": n})) for n in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[2], asyncio.CancelledError)
        found = await queue.jobs([job.id for n, job in enumerate(answers) if n != 2])  # type: ignore[union-attr]
        assert len(found) == 4
        await queue.enqueue("t")

    run_with(dsn, namespace, body)


@pytest.mark.parametrize("at", [0, 1])
def test_a_queue_goes_on_in_the_next_loop(dsn: str, namespace: str, at: int) -> None:
    queue = AsyncQueue(dsn, namespace=namespace)

    async def left() -> None:
        task = asyncio.create_task(queue.enqueue("t"))
        for _ in range(at):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await queue.close()

    async def again() -> int:
        async with queue:
            return (await queue.enqueue("t")).id

    asyncio.run(left())
    assert asyncio.run(again()) > 0
