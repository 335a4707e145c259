"""A place to start embedded servers in: a temporary folder, and clients that are processes of their own.

What is tested is what happens when they, the guard or the server die.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psycopg

from flowq.postgres.server.guard import Layout

PATIENCE_S = 30.0

CLIENT = """
import sys
from flowq.postgres.server import embedded_server
server = embedded_server(fsync=False, grace_s=0.2)
print(server.dsn, flush=True)
sys.stdin.read()
server.release()
"""


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Return once a condition holds; fail if it does not in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.02)


class Client:
    """A process that uses the embedded server until its standard input ends."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._dsn = ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def dsn(self) -> str:
        """What the client was given; waits for it."""
        if not self._dsn:
            assert self.process.stdout is not None
            self._dsn = self.process.stdout.readline().strip()
            assert self._dsn, "the client got no server"
        return self._dsn

    def kill(self) -> None:
        self.process.kill()
        self.leave()

    def leave(self) -> None:
        self.process.communicate(timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.leave()


class Place:
    """A temporary folder, and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PG") and name not in ("FLOWQ_DATABASE_URL", "DATABASE_URL")
        } | {"TMPDIR": str(folder), "FLOWQ_PG_FSYNC": "off"}

    def client(self, program: str = CLIENT, python: str = sys.executable, **options: Any) -> Client:
        """Start a client."""
        return Client(
            subprocess.Popen(
                [python, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd="/",
                env=self.environment,
                **options,
            )
        )

    @property
    def layout(self) -> Layout:
        [home] = self.folder.glob("flowq-*")
        return Layout(home)

    @property
    def server_pid(self) -> int:
        return int(self.layout.pid_file.read_text().split()[0])

    @property
    def guard_pid(self) -> int:
        [pid] = [pid for pid, command in self.commands().items() if "guard.py" in command]
        return pid

    def commands(self) -> dict[int, str]:
        """The command lines of the guards and postmasters of this place, by pid."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if str(self.folder) in command:
                        found[int(entry.name)] = command
        return found

    def is_quiet(self) -> bool:
        return not self.commands()

    def ends(self) -> None:
        """Wait until neither guard nor server is left."""
        eventually(self.is_quiet, "guard and server end")


def is_answering(dsn: str) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(dsn):
        return True
    return False
