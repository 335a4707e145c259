"""The worker: claims due jobs, runs their handlers, settles what has ended, and sleeps exactly as long as it may.

Theory of operation
-------------------
One loop owns all claims (:meth:`Worker._step`). A step does the first of these that applies:

1. free slots, and a queue that may have a due job: claim, and in the same transaction settle what has ended;
2. outcomes wait: settle them alone;
3. rest until a job ends, a hint comes, or the instant at which a claim said that it could do more.

When it says that it sleeps, so that enqueues notify it, is decided by :mod:`flowq.worker.attention`; how several
queues share its slots, by :mod:`flowq.worker.sources`.

**Loss.** Every write is fenced by (id, token), so an outcome may be sent twice. After a lost connection the loop asks
the store which jobs it believes to run here and starts those it doesn't know: their claim was committed, its reply was
lost. It asks every third of a lease, too. The heartbeat has a thread of its own
(:mod:`flowq.postgres.heartbeat`); a lost lease means a new registration, and the outcomes of older attempts are still
sent: those that another worker has taken over meanwhile change nothing.
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
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from flowq.errors import DatabaseUnreachable, FlowqError, StoreError
from flowq.execution import Execution
from flowq.postgres.connection import AsyncLink, Link
from flowq.postgres.driver import PostgresStore
from flowq.postgres.heartbeat import Heartbeat
from flowq.postgres.listener import Listener
from flowq.programs import Claimed, Ended, Failed, claim, settle
from flowq.programs.commands import LockDeclared, Program, Register, Round, Sleep, Unregister
from flowq.queue import AsyncQueue, Queue
from flowq.task import Duration
from flowq.units import checked_key, duration_us, flag, whole_number
from flowq.worker.attention import NEVER, Attention, Look, Wait
from flowq.worker.sources import Source, Sources
from flowq.worker.upkeep import keep_up

if TYPE_CHECKING:
    from flowq.postgres.server import Server

__all__ = ["Worker"]

_log = logging.getLogger("flowq.worker")

_SECOND_LOOK_S = 0.1
"""After saying that it sleeps; the looks after that come at three times the distance, up to the poll."""

_FIRST_WAIT_S, _LAST_WAIT_S = 0.05, 2.0


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
            server = await _opened(self.queue)
            _log.info(
                "worker %s: %d slots, queues %s, tasks %s, on %s",
                self.name,
                self.concurrency,
                ", ".join(self.queues),
                ", ".join(sorted(self.queue._registry.tasks)) or "none",
                server.describe(),
            )
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
        self._sources = Sources(self.queues, random.random())
        self._attention = Attention(self.queue.notify and not self._burst, self._poll_s)
        self._outcomes: list[Ended] = []
        self._clock = (0, 0.0)
        self._audit_at = NEVER
        self._look_s = self._poll_s
        self._poll_at = time.monotonic() + self._poll_s
        self._stop_at = NEVER
        self._link = AsyncLink(server.dsn, store)
        self._execution = Execution(self.concurrency, registry.tasks.get, self._nudge, store)
        self._heartbeat = Heartbeat(Link(server.dsn, store), self._lease_us, self._nudge_from_thread)
        upkeep = AsyncLink(server.dsn, store)
        try:
            await self._link.run(lambda: _present(self.queues))
            await self._register()
            async with asyncio.TaskGroup() as beside:
                keeping = keep_up(upkeep, server.dsn, self._lease_us, self._heartbeat.sure, self._hint)
                tasks = [beside.create_task(keeping)]
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
                    first = wait_s == _FIRST_WAIT_S
                    _log.log(logging.WARNING if first else logging.DEBUG, "worker %s: %s", self.name, error)
                    self._audit_at = 0.0
                else:
                    _log.exception("worker %s: the store refused", self.name)
                    await self._settle_apart()
                self._wake.clear()
                await self._wait(wait_s * random.uniform(0.5, 1.0))
                wait_s = min(wait_s * 2, _LAST_WAIT_S)
                self._sources.hint()

    def _done(self) -> bool:
        if self._at_once:
            return True
        idle = self._execution.running == 0 and not self._outcomes
        if self._stop_asked:
            now = time.monotonic()
            self._stop_at = min(self._stop_at, now + self._grace_s)
            if now >= self._stop_at and not idle:
                _log.warning(
                    "worker %s: %d jobs still run at the end of grace", self.name, self._execution.running
                )
            return idle or now >= self._stop_at
        return self._burst and idle and self._sources.drained()

    async def _step(self) -> None:
        self._wake.clear()
        now = time.monotonic()
        self._outcomes += self._execution.take()
        if self._stop_asked:
            await (self._settle() if self._outcomes else self._rest(now, 0))
            return
        if not await self._look_after_itself(now):
            return
        self._sources.tick(now)
        if self._outcomes and self._attention.awake:
            self._sources.hint_ungated()
        free = self.concurrency - self._execution.running
        ready = self._sources.ready()
        if free > 0 and ready:
            await self._claim(ready, free)
        elif self._outcomes:
            await self._settle()
        else:
            await self._rest(now, free)

    async def _look_after_itself(self, now: float) -> bool:
        """See to the lease, the audit and the poll; whether it may claim."""
        if self._heartbeat.lost:
            _log.warning("worker %s: the lease of worker %s was lost, registering anew", self.name, self.id)
            await self._register()
        if not self._heartbeat.sure():
            await self._wait(1.0)  # the heartbeat will say whether the lease still stands
            return False
        if now >= self._audit_at:
            await self._adopt()
        if now >= self._poll_at:
            self._sources.hint()
            self._poll_at = now + self._look_s * random.uniform(0.9, 1.0)
            self._look_s = min(self._look_s * 3, self._poll_s)
        return True

    # --- claim and settle ---

    async def _claim(self, ready: list[Source], free: int) -> None:
        """Share the free slots among the queues until none is free or nothing is left to claim."""
        found = False
        while free > 0 and ready and not self._stop_asked:
            starts = [
                (source, len((await self._claim_from(source, share)).started))
                for source, share in self._sources.shares(ready, free)
            ]
            self._sources.pay(starts)
            started = sum(n for _, n in starts)
            found = found or started > 0
            free -= started
            ready = [source for source in ready if source.ready]
        if found:
            self._attention.found(time.monotonic())

    async def _claim_from(self, source: Source, n: int) -> Claimed:
        worker, ended = self._id(), tuple(self._outcomes)
        source.hinted = False
        asked_s = time.monotonic()
        claimed = await self._link.run(lambda: claim(source.name, n, worker, gated=source.gated, ended=ended))
        self._settled(ended, claimed.settled)
        self._clock = (claimed.now_us, asked_s)
        for job in claimed.started:
            self._execution.start(job, source.name)
        source.claimed(claimed, n, asked_s)
        return claimed

    async def _settle(self) -> None:
        ended = tuple(self._outcomes)
        self._settled(ended, await self._link.run(lambda: settle(ended)))

    def _settled(self, ended: Sequence[Ended], held: frozenset[int]) -> None:
        del self._outcomes[: len(ended)]
        for outcome in ended:
            attempt = (outcome.id, outcome.token)
            queue = self._execution.queues.pop(attempt)
            completed = attempt in self._execution.completed
            self._execution.completed.discard(attempt)
            if outcome.id not in held and completed:
                # Its handler has settled it in a transaction of its own (rule X6), and can't fail any more.
                if isinstance(outcome, Failed):
                    why = outcome.error.strip().rpartition("\n")[2]
                    _log.warning("job %d: raised after its success was committed: %s", outcome.id, why)
            elif outcome.id not in held:
                _log.warning("job %d: the outcome of attempt %d came too late", outcome.id, outcome.token)
            elif isinstance(outcome, Failed):
                self._sources.hint(queue)  # it may be pending again
                why = outcome.error.strip().rpartition("\n")[2]
                _log.warning("job %d: attempt %d failed: %s", outcome.id, outcome.token, why)

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

    # --- rest ---

    async def _rest(self, now: float, free: int) -> None:
        """Wait for a job's end, a hint or the next instant; say first that enqueues shall notify."""
        attentive = not self._stop_asked and free > 0
        until = self._stop_at if self._stop_asked else min(self._poll_at, self._audit_at)
        if attentive:
            until = min(until, self._sources.next_s())
        decision = self._attention.decide(now, attentive)
        if isinstance(decision, Wait):
            await self._wait(min(until, decision.until_s) - time.monotonic())
        elif isinstance(decision, Look):
            if not await self._wait(min(until - now, decision.after_s)):
                self._sources.hint()
        else:
            await self._say(decision.for_s)
            self._sources.hint()

    async def _say(self, for_s: float | None) -> None:
        """Say that it sleeps for so long from now, or (None) that it is awake."""
        worker, until_us = self._id(), None
        now = time.monotonic()
        if for_s is not None:
            server_us, asked_s = self._clock
            until_us = server_us + round((now - asked_s + for_s) * 1e6)
        await self._link.run(lambda: _sleep(worker, until_us))
        self._attention.said(now, for_s)
        if for_s is not None:
            # A slow enqueue that saw it awake may commit after the last look, and tells nobody: look again soon.
            self._look_s = _SECOND_LOOK_S
            self._poll_at = min(self._poll_at, now + self._look_s)

    async def _wait(self, seconds: float) -> bool:
        """Wait until nudged, at most so long; whether it was."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return self._wake.is_set()
        try:
            async with asyncio.timeout(None if seconds == NEVER else seconds):
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
        self._sources.hint(queue)
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
        self._attention.said(asked_s, None)
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


def _present(queues: tuple[str, ...]) -> Program[None]:
    """Create the queues that are missing, so that there is something to listen to."""
    yield Round((LockDeclared(queues, (), ()),), False)
    yield Round((), True)


def _sleep(worker: int, until_us: int | None) -> Program[None]:
    yield Round((Sleep(worker, until_us),), True)


def _unregister(worker: int) -> Program[None]:
    yield Round((Unregister(worker),), True)


async def _opened(queue: Queue | AsyncQueue) -> Server:
    """Open the queue, so that its declarations are stored, and return its server."""
    if isinstance(queue, AsyncQueue):
        await queue.open()
    else:
        await asyncio.to_thread(queue.open)
    return queue.server


async def _closed(queue: Queue | AsyncQueue) -> None:
    if isinstance(queue, AsyncQueue):
        await queue.close()
    else:
        await asyncio.to_thread(queue.close)
