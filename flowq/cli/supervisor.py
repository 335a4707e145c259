"""Run worker processes and keep them running.

Each child has a session of its own, so that Ctrl-C in a terminal reaches only the supervisor, which passes it on as
SIGTERM; and a pipe from the supervisor, whose end tells it that the supervisor is gone, killed or not. A child that
ends unasked is started again, with a growing pause while it keeps ending early.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import subprocess
import threading
import time
from typing import Any, Final

__all__ = ["Supervisor"]

_log = logging.getLogger("flowq.supervisor")
_EARLY_S: Final = 10.0
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 30.0


class _Child:
    """One place of a worker process, and the process that holds it now."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.began_s = 0.0
        self.pause_s = _FIRST_PAUSE_S
        self.due_s: float | None = 0.0
        """When to start it; None: it runs, or has ended for good."""


class Supervisor:
    """Runs ``processes`` copies of a command until told to stop by SIGTERM or SIGINT, twice to stop at once.

    Parameters
    ----------
    command
        What each child runs.
    processes
        How many.
    restart
        Whether a child that ended unasked is started again; without it, `run` returns once all have ended.
    """

    def __init__(self, command: list[str], processes: int, *, restart: bool = True) -> None:
        self._command = command
        self._restart = restart
        self._children = [_Child() for _ in range(processes)]
        self._events: queue.SimpleQueue[_Child | None] = queue.SimpleQueue()
        self._stopping = False
        self._worst = 0

    def run(self) -> int:
        """Run; return 0, or the exit code of a child that failed and wasn't started again."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self._signalled) for number in numbers}
        try:
            while any(child.process is not None or child.due_s is not None for child in self._children):
                self._start_due()
                self._hear()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for child in self._children:
                if child.process is not None:
                    child.process.kill()
        return self._worst

    def _signalled(self, *_: Any) -> None:
        self._events.put(None)

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.due_s is not None and child.due_s <= now:
                child.due_s = None
                child.began_s = now
                child.process = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
                threading.Thread(target=self._watch, args=(child, child.process), daemon=True).start()

    def _watch(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._events.put(child)

    def _hear(self) -> None:
        """Wait for a signal, the end of a child, or the instant to start one again."""
        dues = [child.due_s for child in self._children if child.due_s is not None]
        try:
            event = self._events.get(timeout=max(0.0, min(dues) - time.monotonic()) if dues else None)
        except queue.Empty:
            return
        if event is None:
            self._stopping = True
            for child in self._children:
                child.due_s = None
                if child.process is not None:
                    with contextlib.suppress(ProcessLookupError):
                        child.process.send_signal(signal.SIGTERM)
            return
        self._ended(event)

    def _ended(self, child: _Child) -> None:
        process, child.process = child.process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        if self._stopping or not self._restart:
            code = process.returncode
            self._worst = self._worst or (code if code >= 0 else 128 - code)
            return
        now = time.monotonic()
        child.pause_s = (
            min(child.pause_s * 2, _LAST_PAUSE_S) if now - child.began_s < _EARLY_S else _FIRST_PAUSE_S
        )
        child.due_s = now + child.pause_s
        _log.warning(
            "worker process %d ended with %d, starting another in %.1f s",
            process.pid,
            process.returncode,
            child.pause_s,
        )
