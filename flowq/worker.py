"""The worker: claims due jobs, runs their handlers, settles what has ended, and sleeps exactly as long as it may.

Theory of operation
-------------------
One loop owns all claims (:meth:`Worker._step`). A step does the first of these that applies:

1. free slots, and a queue that may have a due job: claim, and in the same transaction settle what has ended;
2. outcomes wait: settle them alone;
3. no free slot, but a task here drops its excess: claim with n = 0, which can shed but not start (rule D1);
4. rest until a job ends, a hint comes, or the instant that the claims named.

A claim names the next instant at which it could do more, on the server's clock. The loop keeps only the distance from
the claim's own instant: the two clocks are never compared (rule T2).

**Sleep.** Enqueues notify only workers that said they sleep, so before its first rest a worker says so and then claims
once more: an enqueue before that claim is found by it, one after it notifies. The word stays good over many short
rests, and is taken back only when hints come so fast that looking is cheaper, or when no slot has been free for a while.
While awake a worker that rests looks again every few milliseconds, as long as it finds something.

**Several queues** share the slots by smooth weighted round robin (rule A5), one pick for each free slot among the queues
that may have a due job; what one leaves over goes to the others.

**Loss.** Every write is fenced by (id, token), so an outcome may be sent twice. After a lost connection the loop asks
the store which jobs it believes to run here and starts those it doesn't know: their claim was committed, its reply was
lost. It asks every third of a lease, too. The heartbeat has a thread of its own (:mod:`flowq.postgres.heartbeat`); a lost lease
means a new registration, and the outcomes of older attempts are still sent: those that another worker has taken over
meanwhile change nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg

from flowq.errors import DatabaseUnreachable, FlowqError, StoreError
from flowq.execution import Execution
from flowq.policy import round_robin
from flowq.postgres.connection import AsyncLink, Link
from flowq.postgres.driver import PostgresStore, connect, translated
from flowq.postgres.heartbeat import Heartbeat
from flowq.postgres.listener import Listener
from flowq.postgres.migrate import create_partitions
from flowq.programs import Claimed, Ended, Failed, claim, maintain, settle
from flowq.programs.commands import LockDeclared, Program, Register, Round, Sleep, Unregister
from flowq.queue import AsyncQueue, Queue
from flowq.task import Duration
from flowq.units import checked_key, duration_us, flag, whole_number

if TYPE_CHECKING:
    from flowq.postgres.server import Server

__all__ = ["Worker"]

T = TypeVar("T")

_log = logging.getLogger("flowq.worker")

_NEVER: Final = float("inf")
_GLANCE_S: Final = 0.002
"""An awake worker's rest."""
_LINGER_S: Final = 0.010
"""How long after its last find an awake worker goes on looking."""
_FULL_S: Final = 0.050
"""How long all slots must be taken before a worker asks not to be notified."""
_FLOOD_S, _FLOOD_CLAIMS = 0.1, 20
"""Finds within so many seconds after which a worker that is notified of each stays awake instead."""
_UPKEEP_S: Final = 0.8
"""Longest pause between two searches for lapsed jobs, so that they start within lease + 1 s (rule X5)."""
_FIRST_WAIT_S, _LAST_WAIT_S = 0.05, 2.0
_PARTITIONS_S: Final = 86_400.0
_WEEKS_AHEAD: Final = 4
"""How often the archive's partitions are looked after, and how far ahead they are made."""


class _Source:
    """One queue, as its worker sees it."""

    __slots__ = ("at", "gated", "hinted", "name", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.gated = False
        self.ready = True
        """A claim may find something."""
        self.hinted = True
        """Something has happened since the last claim."""
        self.at = _NEVER
        """When a claim can find something without being told."""

    def hint(self) -> None:
        self.ready = self.hinted = True


class Worker:
    """Runs the jobs of some queues.

    Parameters
    ----------
    queue
        The :class:`~flowq.Queue` or :class:`~flowq.AsyncQueue` whose declared tasks it runs. A job whose task isn't
        declared there fails for good, as ``UnknownTask``.
    queues
        Names of the queues that it serves, with equal shares of its slots.
    concurrency
        Slots: how many jobs may run at once, >= 1. Coroutines run in the event loop, functions in threads.
    lease
        How long after its worker has vanished a job starts elsewhere; renewed three times as often.
    poll
        Longest rest without a look at the store, for hints that got lost.
    name
        For people; host name and process by default.
    grace
        How long running jobs may go on after a stop was asked for.
    burst
        Return once nothing runs here and no job is due or will become due by itself, in place of waiting for more.
    listen_dsn
        A direct connection for LISTEN where the queue's goes through a transaction pooler; by default
        ``FLOWQ_LISTEN_URL``, else the queue's own.

    Examples
    --------
    >>> from flowq.queue import Queue
    >>> queue = Queue("postgresql://localhost/app")
    >>> worker = Worker(queue, queues=("default", "mail"), concurrency=8)
    >>> worker.run()  # doctest: +SKIP
    """

    def __init__(
        self,
        queue: Queue | AsyncQueue,
        queues: Sequence[str] = ("default",),
        concurrency: int = 4,
        lease: Duration = "15s",
        poll: Duration = "5s",
        name: str | None = None,
        *,
        grace: Duration = "30s",
        burst: bool = False,
        listen_dsn: str | None = None,
    ) -> None:
        if isinstance(queues, str) or not queues:
            raise TypeError(f"queues must be a list of at least one name: {queues!r}")
        self.queue = queue
        self.queues = tuple(dict.fromkeys(checked_key(name, "queue") for name in queues))
        self.concurrency = whole_number(concurrency, "concurrency", 1, 10_000)
        self.name = f"{socket.gethostname()}:{os.getpid()}" if name is None else checked_key(name, "name")
        self.id: int | None = None
        """The worker's id in the store, while it runs."""
        self._lease_us = duration_us(lease, "lease")
        self._poll_s = duration_us(poll, "poll") / 1e6
        self._grace_s = duration_us(grace, "grace", allow_zero=True) / 1e6
        self._burst = flag(burst, "burst")
        self._listen_dsn = listen_dsn
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_asked = self._at_once = False

    # --- the outside ---

    def run(self) -> None:
        """Work until stopped: by :meth:`stop`, or SIGTERM or SIGINT where this is the main thread.

        The first signal lets running jobs end, within ``grace``; a second one stops at once, and their jobs start
        elsewhere.
        """
        asyncio.run(self._run_with_signals())

    async def run_async(self) -> None:
        """Work until :meth:`stop`; signals are left to the caller. Cancelling it stops at once."""
        if self._loop is not None:
            raise RuntimeError("this worker runs already: make another one")
        self._loop = asyncio.get_running_loop()
        opened = self.queue._backend is None
        try:
            server = await _server(self.queue)
            _log.info("worker %s: %s", self.name, server.describe())
            await self._serve(server)
        finally:
            self._loop = None
            self._stop_asked = self._at_once = False
            if opened:
                await _closed(self.queue)

    def stop(self, *, at_once: bool = False) -> None:
        """Ask it to stop, from any thread; ``at_once`` doesn't wait for running jobs."""
        self._stop_asked = True
        self._at_once = self._at_once or at_once
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has closed: it has stopped
                loop.call_soon_threadsafe(self._nudge)

    async def _run_with_signals(self) -> None:
        loop = asyncio.get_running_loop()
        signals: tuple[signal.Signals, ...] = ()
        if threading.current_thread() is threading.main_thread():
            signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._signalled, number)
        try:
            await self.run_async()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _signalled(self, number: signal.Signals) -> None:
        _log.info("worker %s: %s, stopping%s", self.name, number.name, " at once" if self._stop_asked else "")
        self.stop(at_once=self._stop_asked)

    # --- one run ---

    async def _serve(self, server: Server) -> None:
        store = PostgresStore(self.queue.namespace, notify=self.queue.notify)
        registry = self.queue._registry
        self._wake = asyncio.Event()
        self._sources = {name: _Source(name) for name in self.queues}
        self._credits: Mapping[str, int] = round_robin.phase({}, self.queues, random.random())
        self._outcomes: list[Ended] = []
        self._clock = (0, 0.0)
        self._said_s: float | None = None
        self._found_s = self._flood_s = self._full_s = 0.0
        self._flood = 0
        self._audit_at = _NEVER
        self._poll_at = time.monotonic() + self._poll_s
        self._stop_at = _NEVER
        self._link = AsyncLink(server.dsn, store)
        self._execution = Execution(self.concurrency, registry.tasks.get, self._nudge)
        self._heartbeat = Heartbeat(Link(server.dsn, store), self._lease_us, self._nudge_from_thread)
        upkeep = AsyncLink(server.dsn, store)
        try:
            await self._link.run(lambda: _present(self.queues))
            await self._register()
            async with asyncio.TaskGroup() as beside:
                tasks = [beside.create_task(self._maintain(upkeep, server))]
                if self.queue.notify:
                    dsn = self._listen_dsn or os.environ.get("FLOWQ_LISTEN_URL") or server.dsn
                    tasks.append(beside.create_task(Listener(dsn, upkeep, self.queues, self._hint).run()))
                await self._work()
                for task in tasks:
                    task.cancel()
        finally:
            await self._execution.close()
            self._heartbeat.close()
            await self._leave()
            await upkeep.close()
            await self._link.close()

    async def _work(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._done():
            try:
                await self._step()
                wait_s = _FIRST_WAIT_S
            except StoreError as error:
                if isinstance(error, DatabaseUnreachable):
                    _log.warning("worker %s: %s", self.name, error)
                    self._audit_at = 0.0
                else:
                    _log.exception("worker %s: the store refused", self.name)
                    await self._settle_apart()
                self._wake.clear()
                await self._wait(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(wait_s * 2, _LAST_WAIT_S)
                self._hint(None)

    def _done(self) -> bool:
        if self._at_once:
            return True
        idle = self._execution.running == 0 and not self._outcomes
        if self._stop_asked:
            now = time.monotonic()
            self._stop_at = min(self._stop_at, now + self._grace_s)
            if now >= self._stop_at:
                _log.warning(
                    "worker %s: %d jobs still run at the end of grace", self.name, self._execution.running
                )
            return idle or now >= self._stop_at
        return self._burst and idle and not any(s.ready or s.at < _NEVER for s in self._sources.values())

    async def _step(self) -> None:
        self._wake.clear()
        now = time.monotonic()
        self._outcomes += self._execution.take()
        if self._outcomes and self._said_s is None:
            self._hint(None)  # nobody tells an awake worker: look while settling
        if not self._stop_asked:
            if self._heartbeat.lost:
                _log.warning(
                    "worker %s: the lease of worker %s was lost, registering anew", self.name, self.id
                )
                await self._register()
            if not self._heartbeat.sure():
                await self._wait(1.0)  # the heartbeat will say whether the lease still stands
                return
            if now >= self._audit_at:
                await self._adopt()
            if now >= self._poll_at:
                self._hint(None)
                self._poll_at = now + self._poll_s * random.uniform(0.9, 1.0)
        free = 0 if self._stop_asked else self.concurrency - self._execution.running
        for source in self._sources.values():
            if source.at <= now:
                source.at = _NEVER
                source.hint()
        ready = [source for source in self._sources.values() if source.ready]
        if free > 0 and ready:
            await self._claim(ready, free)
        elif self._outcomes:
            await self._settle()
        elif free == 0 and not self._stop_asked and self._sheds() and any(s.hinted for s in ready):
            for source in ready:
                if source.hinted:
                    await self._claim_from(source, 0)
        else:
            await self._rest(now, free)

    # --- claim and settle ---

    async def _claim(self, ready: list[_Source], free: int) -> None:
        """Share the free slots among the queues until none is free or nothing is left to claim."""
        started = 0
        while free > 0 and ready and not self._stop_asked:
            for source, share in self._shares(ready, free):
                claimed = await self._claim_from(source, share)
                got = len(claimed.started)
                started += got
                free -= got
                if got < share:
                    self._refund(source, share - got, ready)
            ready = [source for source in ready if source.ready]
        now = time.monotonic()
        if started == 0:
            return
        self._found_s = now
        if now - self._flood_s > _FLOOD_S:
            self._flood_s, self._flood = now, 0
        self._flood += 1

    def _shares(self, ready: list[_Source], free: int) -> Iterable[tuple[_Source, int]]:
        if len(ready) == 1:
            return ((ready[0], free),)
        names = [source.name for source in ready]
        shares = dict.fromkeys(names, 0)
        for _ in range(free):
            self._credits, name = round_robin.pick(self._credits, {}, names)
            shares[name] += 1
        return [(source, shares[source.name]) for source in ready if shares[source.name]]

    def _refund(self, source: _Source, picks: int, ready: list[_Source]) -> None:
        """Undo picks that started nothing: in each, every candidate had gained 1 and this one had paid for all."""
        if len(ready) > 1:
            credits = dict(self._credits)
            for other in ready:
                credits[other.name] -= picks
            credits[source.name] += picks * len(ready)
            self._credits = credits

    async def _claim_from(self, source: _Source, n: int) -> Claimed:
        worker, ended = self._id(), tuple(self._outcomes)
        source.hinted = False
        asked_s = time.monotonic()
        claimed = await self._link.run(lambda: claim(source.name, n, worker, gated=source.gated, ended=ended))
        self._settled(ended, claimed.settled)
        self._clock = (claimed.now_us, asked_s)
        for job in claimed.started:
            self._execution.start(job, source.name)
        source.gated = claimed.gated
        source.ready = claimed.more or len(claimed.started) == n
        source.hinted = source.hinted or claimed.more
        source.at = _NEVER
        if claimed.come_back_us is not None:
            source.at = asked_s + (claimed.come_back_us - claimed.now_us) / 1e6
        return claimed

    async def _settle(self) -> None:
        ended = tuple(self._outcomes)
        self._settled(ended, await self._link.run(lambda: settle(ended)))

    def _settled(self, ended: Sequence[Ended], held: frozenset[int]) -> None:
        del self._outcomes[: len(ended)]
        for outcome in ended:
            queue = self._execution.queues.pop((outcome.id, outcome.token))
            if outcome.id not in held:
                _log.warning("job %d: the outcome of attempt %d came too late", outcome.id, outcome.token)
            elif isinstance(outcome, Failed) and queue in self._sources:
                self._sources[queue].hint()  # it may be pending again

    async def _settle_apart(self) -> None:
        """Settle outcome by outcome, so that one that the store refuses keeps none of the others (rule X9)."""
        for outcome in tuple(self._outcomes):
            try:
                held = await self._link.run(partial(settle, (outcome,)))
            except DatabaseUnreachable:
                return
            except StoreError as error:
                refused = Failed(outcome.id, outcome.token, f"the store refused the job's outcome: {error}")
                self._outcomes[0] = refused  # once more apart, or with the next claim
                return
            self._settled((outcome,), held)

    async def _adopt(self) -> None:
        """Start what the store believes to run here and this process doesn't know: a claim whose reply was lost."""
        self._audit_at = time.monotonic() + self._lease_us / 3e6
        for job, queue in await self._link.held(self._id()):
            if (job.id, job.token) not in self._execution.queues:
                _log.warning("job %d: its claim was committed but the reply was lost, starting it", job.id)
                self._execution.start(job, queue)

    def _sheds(self) -> bool:
        """Whether a task here drops its excess, so that arrivals matter while no slot is free (rule D1)."""
        limits = (declared.spec.flow.rate_limit for declared in self.queue._registry.tasks.values())
        return any(limit is not None and limit.on_excess == "drop" for limit in limits)

    # --- rest ---

    async def _rest(self, now: float, free: int) -> None:
        """Wait for a job's end, a hint or the next instant; say first that enqueues shall notify."""
        attentive = not self._stop_asked and (free > 0 or self._sheds())
        until = min(self._poll_at, self._audit_at, self._stop_at)
        if attentive:
            until = min(until, *(source.at for source in self._sources.values()))
            self._full_s = _NEVER
        elif self._full_s == _NEVER:
            self._full_s = now
        if self.queue.notify and not self._burst:
            if not attentive:
                if self._said_s is not None and now - self._full_s >= _FULL_S:
                    await self._say(None)
                elif self._said_s is not None:
                    until = min(until, self._full_s + _FULL_S)
            elif self._said_s is not None and now - self._flood_s <= _FLOOD_S and self._flood > _FLOOD_CLAIMS:
                await self._say(None)
                self._hint(None)
                return
            elif self._said_s is None and now - self._found_s < _LINGER_S:
                if not await self._wait(min(until - now, _GLANCE_S)):
                    self._hint(None)
                return
            elif self._said_s is None or self._said_s < now + self._poll_s:
                await self._say(2 * self._poll_s)
                self._hint(None)
                return
        await self._wait(until - time.monotonic())

    async def _say(self, for_s: float | None) -> None:
        """Say that it sleeps for so long from now, or (None) that it is awake."""
        worker, until_us = self._id(), None
        now = time.monotonic()
        if for_s is not None:
            server_us, asked_s = self._clock
            until_us = server_us + round((now - asked_s + for_s) * 1e6)
        await self._link.run(lambda: _sleep(worker, until_us))
        self._said_s = None if for_s is None else now + for_s

    async def _wait(self, seconds: float) -> bool:
        """Wait until nudged, at most so long; whether it was."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return self._wake.is_set()
        try:
            async with asyncio.timeout(None if seconds == _NEVER else seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def _nudge(self) -> None:
        self._wake.set()

    def _nudge_from_thread(self) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._nudge)

    def _hint(self, queue: str | None) -> None:
        for source in self._sources.values():
            if queue is None or source.name == queue:
                source.hint()
        self._nudge()

    # --- registration and upkeep ---

    def _id(self) -> int:
        if self.id is None:
            raise RuntimeError("the worker isn't registered")
        return self.id

    async def _register(self) -> None:
        asked_s = time.monotonic()
        self.id = await self._link.run(self._registration)
        self._heartbeat.begin(self._id(), asked_s)
        self._said_s = None
        self._audit_at = time.monotonic() + self._lease_us / 3e6
        self._hint(None)

    def _registration(self) -> Program[int]:
        [id] = yield Round((Register(self.name, self.queues, self.concurrency, self._lease_us),), True)
        return int(id)

    async def _leave(self) -> None:
        """Give the lease back; jobs that still run here start elsewhere."""
        if self.id is None:
            return
        try:
            async with asyncio.timeout(5):
                await self._link.run(lambda: _unregister(self._id()))
        except (FlowqError, TimeoutError) as error:
            _log.warning("worker %s: not unregistered, its lease will lapse: %s", self.name, error)
        self.id = None

    async def _maintain(self, link: AsyncLink, server: Server) -> None:
        """Return the jobs of dead workers to their queues, again and again."""
        pause_s = min(self._lease_us / 3e6, _UPKEEP_S)
        partitions_at = time.monotonic() + random.uniform(0.0, _PARTITIONS_S)
        while True:
            try:
                if time.monotonic() >= partitions_at:
                    partitions_at = time.monotonic() + _PARTITIONS_S
                    await asyncio.to_thread(_create_partitions, server.dsn)
                done = await link.run(maintain)
            except StoreError as error:
                _log.warning("upkeep: %s", error)
            else:
                if done.returned or done.dead:
                    _log.warning(
                        "upkeep: %d jobs of lost workers returned, %d dead",
                        len(done.returned),
                        len(done.dead),
                    )
                    self._hint(None)
                if done.more:
                    continue
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.0))


def _present(queues: tuple[str, ...]) -> Program[None]:
    """Create the queues that are missing, so that there is something to listen to."""
    yield Round((LockDeclared(queues, (), ()),), False)
    yield Round((), True)


def _sleep(worker: int, until_us: int | None) -> Program[None]:
    yield Round((Sleep(worker, until_us),), True)


def _unregister(worker: int) -> Program[None]:
    yield Round((Unregister(worker),), True)


def _create_partitions(dsn: str) -> None:
    try:
        with connect(dsn) as conn:
            create_partitions(conn, _WEEKS_AHEAD)
    except psycopg.Error as error:
        raise translated(error) from error


async def _server(queue: Queue | AsyncQueue) -> Server:
    """Open the queue, so that its declarations are stored, and return its server."""
    if isinstance(queue, AsyncQueue):
        await queue.open()
    else:
        await asyncio.to_thread(queue.open)
    backend: Any = queue._backend
    server: Server = backend.server
    return server


async def _closed(queue: Queue | AsyncQueue) -> None:
    if isinstance(queue, AsyncQueue):
        await queue.close()
    else:
        await asyncio.to_thread(queue.close)
