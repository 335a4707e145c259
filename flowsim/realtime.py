"""The same flow in real time: real worker processes on a real PostgreSQL, called at a workload's own instants.

Use it to see, for a few seconds, that production does what the model said. A handler waits for its call's own service
time, so the machine needs few cores; instants are those of the database's clock. What comes back is a
:class:`~flowsim.result.Result`, so whatever can be asked of or drawn from a simulation can be of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tqdm import tqdm

from flowq.errors import ResultTimeout
from flowq.job import FINAL
from flowq.policy import Coalesce, Debounce, Flow
from flowq.programs.commands import JobRecord
from flowq.queue import AsyncJob, AsyncQueue, Queue
from flowq.units import duration_text
from flowsim import world
from flowsim.crew import Crew
from flowsim.experiment import Plan, plan
from flowsim.result import Result
from flowsim.workload import Workload

__all__ = ["in_real_time"]

_PATIENCE: Final = "60s"
"""For a worker to come up, and for the last job to end."""
_LOOK_S: Final = 0.1
_STOP_S: Final = 10.0


def in_real_time(
    flows: Mapping[str, Flow],
    workload: Workload,
    *,
    workers: int = 2,
    service: Any = None,
    seed: int = 0,
    dsn: str | None = None,
) -> dict[str, Result]:
    """Run a workload through real workers, once for each flow, all at the same time.

    Parameters
    ----------
    flows : dict of str to Flow
        Each has a worker process of its own, and jobs, keys and limits of its own.
    workload : Workload
        Calls; they are made at their own instants, so choose seconds, not hours.
    workers : int
        Slots of each worker process.
    service, seed
        As for `flowsim.simulate`: the same arguments give the same service times.
    dsn : str, optional
        A PostgreSQL URL; None: as `flowq.Queue` finds one.

    Returns
    -------
    dict of str to Result
        In the order of the flows. Instants are seconds since the workload's origin, as the database saw them.

    Raises
    ------
    ResultTimeout
        A worker did not come up, or jobs did not end, within a minute.
    """
    plans = {
        name: plan(flow, workload, workers=workers, service=service, seed=seed)
        for name, flow in flows.items()
    }
    token = secrets.token_hex(4)
    first = Queue(dsn)
    first.open()  # starts and migrates an embedded server; keeps it while the others use it
    try:
        url = first.server.dsn
        crews = {
            name: Crew(url, f"live-{token}-{n}", _by_key(flow), workers)
            for n, (name, flow) in enumerate(flows.items())
        }
        with contextlib.ExitStack() as stack:
            for crew in crews.values():
                stack.enter_context(_worker(crew))
            plays = asyncio.run(_play_all(crews, plans))
    finally:
        first.close()
    return {name: _result(plans[name], *plays[name]) for name in flows}


def _by_key(flow: Flow) -> Flow:
    """The flow with its keys taken from the one argument that calls have here."""
    if flow.coalesce is not None:
        flow = flow.replace(Coalesce("{key}"))
    debounce = flow.debounce
    if debounce is not None:
        window, max_wait = duration_text(debounce.window_us), duration_text(debounce.max_wait_us)
        flow = flow.replace(Debounce(window, "{key}", max_wait, debounce.replace_payload))
    return flow


@contextlib.contextmanager
def _worker(crew: Crew) -> Iterator[None]:
    """A worker process for as long as the block runs."""
    process = subprocess.Popen([sys.executable, "-m", "flowsim.crew", crew.to_json()])
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_Play = tuple[list[AsyncJob], dict[int, JobRecord]]


async def _play_all(crews: Mapping[str, Crew], plans: Mapping[str, Plan]) -> dict[str, _Play]:
    queues = {name: crew.queue() for name, crew in crews.items()}
    calls = sum(len(each.arrivals_us) for each in plans.values())
    async with contextlib.AsyncExitStack() as stack:
        for queue in queues.values():
            await stack.enter_async_context(queue)
        await asyncio.gather(*[_ready(queue) for queue in queues.values()])
        with tqdm(total=calls, desc="calls in real time", unit="call", disable=None) as bar:
            plays = await asyncio.gather(*[_play(queues[name], plans[name], bar) for name in queues])
    return dict(zip(queues, plays, strict=True))


async def _ready(queue: AsyncQueue) -> None:
    """Wait until the queue's worker works. The job goes another way, so that no limit and no CoDel sees it."""
    await (await queue.enqueue("ready")).result(timeout=_PATIENCE)


async def _play(queue: AsyncQueue, plan: Plan, bar: tqdm[Any]) -> _Play:
    """Make every call at its instant; then wait until all its jobs are final."""
    keys: Sequence[Any] = [""] * len(plan.arrivals_us) if plan.keys is None else plan.keys.tolist()
    begin = time.monotonic() - int(plan.arrivals_us[0]) / 1e6
    handles: list[AsyncJob] = []
    for arrival_us, key, service_us in zip(
        plan.arrivals_us.tolist(), keys, plan.service_us.tolist(), strict=True
    ):
        await asyncio.sleep(max(0.0, begin + arrival_us / 1e6 - time.monotonic()))
        handles.append(await queue.enqueue("job", args=(str(key), service_us / 1e6)))
        bar.update()
    return handles, await _ended(queue, sorted({handle.id for handle in handles}))


async def _ended(queue: AsyncQueue, ids: list[int]) -> dict[int, JobRecord]:
    """The records of jobs, once all of them are final."""
    records: dict[int, JobRecord] = {}
    ends = time.monotonic() + 60.0
    while ids:
        records |= await queue.jobs(ids)
        ids = [job_id for job_id in ids if records[job_id].state not in FINAL]
        if ids and time.monotonic() > ends:
            raise ResultTimeout(f"{len(ids)} jobs did not end within {_PATIENCE}: is the machine overloaded?")
        await asyncio.sleep(_LOOK_S if ids else 0)
    return records


def _result(plan: Plan, handles: list[AsyncJob], records: dict[int, JobRecord]) -> Result:
    """What happened, as a simulation would tell it: jobs numbered in the order of their creation."""
    order = {job_id: number for number, job_id in enumerate(dict.fromkeys(handle.id for handle in handles))}
    origin_us = records[handles[0].id].enqueued_us - int(plan.arrivals_us[0])
    jobs = [records[job_id] for job_id in order]
    reasons = ["", *sorted({job.reason for job in jobs if job.reason is not None})]
    calls = [0] * len(jobs)
    opened_by = [0] * len(jobs)
    for call, handle in reversed(list(enumerate(handles))):
        calls[order[handle.id]] += 1
        opened_by[order[handle.id]] = call
    log = world.Log(
        call_outcome=bytearray(world.CALL_OUTCOMES.index(handle.outcome.value) for handle in handles),
        call_job=array("q", [order[handle.id] for handle in handles]),
        job_call=array("q", opened_by),
        job_id=array("q", order),
        eligible_us=_since(origin_us, [job.run_at_us for job in jobs]),
        start_us=_since(origin_us, [job.started_us for job in jobs]),
        end_us=_since(origin_us, [job.finished_us for job in jobs]),
        outcome=bytearray(world.JOB_OUTCOMES.index(job.state) for job in jobs),
        reason=bytearray(reasons.index(job.reason or "") for job in jobs),
        reasons=reasons,
        calls=array("q", calls),
        end_of_run_us=max(job.finished_us or 0 for job in jobs) - origin_us,
    )
    return Result(
        f"{plan.policy} (in real time)", plan.workload, plan.service, plan.workers, plan.seed, plan.slo, None, log,
        plan.arrivals_us, plan.keys, plan.service_us, ("job",), None,
    )  # fmt: skip


def _since(origin_us: int, instants_us: list[int | None]) -> array[int]:
    return array(
        "q", [world.NEVER if instant is None else max(0, instant - origin_us) for instant in instants_us]
    )
