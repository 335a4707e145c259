"""Keep a worker's lease alive, whatever the worker is busy with.

A heartbeat has a thread and a connection of its own: neither a handler that holds the event loop, nor a claim that
waits for a lock, delays it. It beats three times a lease. A beat that finds the lease over (the process was stopped, or
the database away, for too long) says so and stops: the worker enters itself anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from flowq.errors import FlowqError
from flowq.postgres.connection import Link
from flowq.programs.commands import Beat, Program, Round

__all__ = ["Heartbeat"]

_log = logging.getLogger("flowq.worker")
_FIRST_WAIT_S, _LAST_WAIT_S = 0.05, 1.0
BEATS_A_LEASE: Final = 3


class Heartbeat:
    """The heartbeat of one worker.

    Parameters
    ----------
    link
        A connection that nobody else uses.
    lease_us
        The lease that each beat gives.
    on_change
        Called in the heartbeat's thread when the lease is lost, or is sure again after a doubt.
    """

    def __init__(self, link: Link, lease_us: int, on_change: Callable[[], None]) -> None:
        self._link = link
        self._lease_us = lease_us
        self._on_change = on_change
        self._worker: int | None = None
        self._sure_until = 0.0
        self._news = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="flowq-heartbeat", daemon=True)
        self.lost = False
        """Whether the lease of the worker that :meth:`begin` named is over."""

    def begin(self, worker: int, asked_s: float) -> None:
        """Beat for a worker whose lease was asked for at ``asked_s`` of the monotonic clock."""
        self._sure_until = asked_s + self._lease_us / 1e6
        self._worker = worker
        self.lost = False
        self._news.set()
        if not self._thread.is_alive():
            self._thread.start()

    def sure(self) -> bool:
        """Whether the lease can't be over yet, as far as this process's clock tells."""
        return time.monotonic() < self._sure_until

    def close(self) -> None:
        """Stop beating."""
        self._closed = True
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1)

    def _run(self) -> None:
        pause_s = self._lease_us / 1e6 / BEATS_A_LEASE
        wait_s = pause_s
        retry_s = _FIRST_WAIT_S
        while not self._closed:
            if self._news.wait(wait_s):
                self._news.clear()
                wait_s, retry_s = pause_s, _FIRST_WAIT_S
                continue
            worker = self._worker
            if worker is None or self.lost:
                continue
            asked_s = time.monotonic()
            try:
                held = self._link.run(partial(_beat, worker, self._lease_us))
            except FlowqError as error:
                _log.log(
                    logging.WARNING if retry_s == _FIRST_WAIT_S else logging.DEBUG, "heartbeat: %s", error
                )
                wait_s, retry_s = min(retry_s, pause_s), min(retry_s * 2, _LAST_WAIT_S)
                continue
            wait_s, retry_s = pause_s, _FIRST_WAIT_S
            doubted = not self.sure()
            if worker != self._worker:
                continue
            if held:
                self._sure_until = asked_s + self._lease_us / 1e6
            else:
                self.lost = True
            if doubted or not held:
                self._on_change()
        self._link.close()


def _beat(worker: int, lease_us: int) -> Program[bool]:
    [held] = yield Round((Beat(worker, lease_us),), True)
    return bool(held)
