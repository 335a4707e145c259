"""What the worker's tests share: waiting for a condition, and workers in threads and processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from flowq import AsyncQueue, Queue, Worker

T = TypeVar("T")

HERE = Path(__file__).parent
PATIENCE_S = 30.0


def eventually(look: Callable[[], T], within_s: float = PATIENCE_S) -> T:
    """Return what ``look`` returns once that is true."""
    ends = time.monotonic() + within_s
    pause = threading.Event()
    while not (found := look()):
        if time.monotonic() > ends:
            raise AssertionError(f"not within {within_s} s")
        pause.wait(0.005)
    return found


@contextlib.contextmanager
def working(queue: Queue | AsyncQueue, *queues: str, **options: Any) -> Iterator[Worker]:
    """A worker in a thread, registered; stopped and waited for at the end."""
    worker = Worker(queue, queues or ("default",), **options)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(lambda: worker.id is not None or raised)
        if not raised:
            yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive(), "the worker didn't stop"
    if raised:
        raise raised[0]


def drain(queue: Queue | AsyncQueue, *queues: str, **options: Any) -> None:
    """Run all that is due, here and now."""
    Worker(queue, queues or ("default",), burst=True, **options).run()


@contextlib.contextmanager
def process(
    dsn: str, namespace: str, *options: str, target: str = "app:queue"
) -> Iterator[subprocess.Popen[str]]:
    """``flowq worker`` as a process of its own; killed at the end if it still runs."""
    environment = {**os.environ, "APP_DSN": dsn, "APP_NAMESPACE": namespace, "PYTHONUNBUFFERED": "1"}
    paths = [str(HERE.parent.parent), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "-m", "flowq.cli", "worker", target, *options]
    with subprocess.Popen(
        command, cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.send_signal(signal.SIGKILL)
            child.communicate()
