"""Guard one embedded PostgreSQL server: start it for its clients, stop it when the last of them is gone.

Theory of operation
-------------------
A client (:mod:`flowq.postgres.server.keeper`) runs this file as a program of its own, in a session of its own.
It forks once, so that it is nobody's child, writes one line when the server is ready or has failed, and stays.
It uses the standard library only and imports nothing of flowq.

*Who uses the server* is known by locks, not by a list of pids: each client holds ``use.lock`` shared, and the
kernel drops the lock when the client dies, however it dies. The guard tries that lock exclusively now and then;
when it could have had it for a whole grace period, it takes ``start.lock`` too, so that no client can arrive, and
stops the server. ``guard.lock`` is held for the guard's life: there is one.

*No death leaves a server behind.* When the guard dies, Linux signals the server (parent-death signal; set from
the main thread, since it follows the thread). When the server dies, the guard starts it again. A guard that
finds the server of a guard that was killed stops it first; that is also what happens where there is no such
signal. ``postmaster.pid`` and the lock of the socket are removed only when it is proven that nobody works on the
data: its pid may have been given to another process meanwhile, so it counts for nothing unless that process has
the data folder as its working directory, as every process of a server has.

*A half made cluster can't be met*: ``initdb`` writes to another name, and a rename makes it the cluster.

*Root* may not run PostgreSQL. The server then runs as ``postgres``, or as ``nobody``; no user is made and no
folder that existed is changed. Binaries that this user can't reach are copied beside the cluster.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

__all__ = ["PORT", "Layout", "Order"]

PORT: Final = 5432
"""Names the socket; no network port is opened."""

_POLL_S: Final = 0.1
_READY_S: Final = 60.0
_INITDB_S: Final = 120.0
_LOCK_S: Final = 5.0
_FAST_S: Final = 10.0
"""How long a fast shutdown, or the end of what a dead server left running, may take before the next means."""
_SHORT_LIFE_S: Final = 5.0
_SHORT_LIVES: Final = 3
"""After so many short lives in a row the server is not started again."""
_PR_SET_PDEATHSIG: Final = 1
_ENVIRONMENT: Final = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin", "HOME": "/"}
"""Results must not differ by the caller's locale, time zone or PG* variables."""


class Order(NamedTuple):
    """What a client asks of a guard: one argument, as JSON."""

    home: str
    """The private folder."""
    folder: str
    """Where ``initdb`` and ``postgres`` are."""
    base: str
    """The folder to which `trees` are relative."""
    trees: tuple[str, ...]
    """What must be copied if the server's user can't reach the binaries."""
    fsync: bool
    grace_s: float
    """How long the server outlives its last client."""
    ephemeral: bool
    """Whether the private folder is removed when the server has stopped."""

    @classmethod
    def load(cls, text: str) -> Order:
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "trees": tuple(fields["trees"])})

    def dump(self) -> str:
        return json.dumps(self._asdict())


class Layout:
    """The names within a private folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.start_lock = home / "start.lock"
        self.use_lock = home / "use.lock"
        self.guard_lock = home / "guard.lock"
        self.log = home / "server.log"
        self.cluster = home / "cluster"
        """Belongs to the server's user, and nobody else may enter it; the socket is here."""
        self.data = self.cluster / "data"
        self.pid_file = self.data / "postmaster.pid"
        self.socket = self.cluster / f".s.PGSQL.{PORT}"
        self.socket_lock = self.cluster / f".s.PGSQL.{PORT}.lock"


class Failure(Exception):
    """The server can't be had; the text is for the client."""


class Guard:
    """One server, from start to stop."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.layout = Layout(Path(order.home))
        self.stopping = False
        self.log = os.open(self.layout.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self.pid = os.getpid()
        self.libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self.user: pwd.struct_passwd | None = None
        self.folder = Path(order.folder)
        self.free_since: float | None = None

    # --- the whole life -------------------------------------------------------------------------------

    def run(self, report: Callable[[str], None]) -> None:
        layout = self.layout
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self.on_signal)
        lock = self.locked(layout.guard_lock, fcntl.LOCK_EX, _LOCK_S)
        if lock is None:
            raise Failure(f"another guard holds {layout.guard_lock}")
        self.user = self.server_user()
        self.own_cluster_folder()
        self.folder = self.reachable_binaries()
        self.clear_remains()
        self.create_cluster()
        server = self.started()
        report("")
        self.watch(server)

    def watch(self, server: subprocess.Popen[bytes]) -> None:
        """Keep the server alive until nobody uses it, then stop it."""
        born, short_lives = time.monotonic(), 0
        while True:
            time.sleep(_POLL_S)
            if self.stopping:
                self.stop(server)
                return
            if server.poll() is not None:
                short_lives = short_lives + 1 if time.monotonic() - born < _SHORT_LIFE_S else 1
                if short_lives >= _SHORT_LIVES:
                    raise Failure(f"the server ended {short_lives} times in a row")
                self.clear_remains()
                server, born = self.started(), time.monotonic()
            if self.is_idle() and self.closed(server):
                return

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True

    # --- who uses it ----------------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Return whether nobody has used the server for the whole grace period."""
        lock = self.locked(self.layout.use_lock, fcntl.LOCK_EX)
        if lock is None:
            self.free_since = None
            return False
        os.close(lock)
        now = time.monotonic()
        if self.free_since is None:
            self.free_since = now
        return now - self.free_since >= self.order.grace_s

    def closed(self, server: subprocess.Popen[bytes]) -> bool:
        """Shut the door and stop the server, unless a client stands in it."""
        start = self.locked(self.layout.start_lock, fcntl.LOCK_EX)
        if start is None:
            return False
        use = self.locked(self.layout.use_lock, fcntl.LOCK_EX)
        if use is None:
            os.close(start)
            return False
        self.stop(server)
        if self.order.ephemeral:
            shutil.rmtree(self.layout.home, ignore_errors=True)
        os.close(use)
        os.close(start)
        return True

    def locked(self, path: Path, mode: int, patience_s: float = 0.0) -> int | None:
        """Open and lock a file; None if another process holds it for longer than the patience."""
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(lock, mode | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(lock)
                    return None
                time.sleep(_POLL_S)
            else:
                return lock

    # --- whose it is ----------------------------------------------------------------------------------

    def server_user(self) -> pwd.struct_passwd | None:
        """Return the user to run the server as, None for the present one."""
        if os.geteuid() != 0:
            return None
        if self.layout.cluster.exists():
            owner = self.layout.cluster.stat().st_uid
            candidates = [entry for entry in pwd.getpwall() if entry.pw_uid == owner]
        else:
            names = [entry.pw_name for entry in pwd.getpwall()]
            candidates = [pwd.getpwnam(name) for name in ("postgres", "nobody") if name in names]
        for entry in candidates:
            if entry.pw_uid != 0:
                return entry
        raise Failure("root may not run PostgreSQL, and there is neither a user postgres nor nobody")

    def own_cluster_folder(self) -> None:
        cluster = self.layout.cluster
        if not cluster.exists():
            cluster.mkdir(mode=0o700)
            if self.user is not None:
                os.chown(cluster, self.user.pw_uid, self.user.pw_gid)

    def reachable_binaries(self) -> Path:
        """Return the folder of the binaries, or of a copy if the server's user can't run them there."""
        folder = Path(self.order.folder)
        if self.user is None or self.runs(folder):
            return folder
        made = (folder / "postgres").stat()
        copy = self.layout.home / f"binaries-{made.st_mtime_ns:x}-{made.st_size:x}"
        inside = copy / folder.relative_to(self.order.base)
        if not copy.exists():
            for older in self.layout.home.glob("binaries*"):
                shutil.rmtree(older)
            half = self.layout.home / "binaries.new"
            for tree in self.order.trees:
                shutil.copytree(Path(self.order.base) / tree, half / tree, symlinks=True)
            make_readable(half)
            half.rename(copy)
        if not self.runs(inside):
            raise Failure(f"user {self.user.pw_name} can't run {inside / 'postgres'}: see {self.layout.log}")
        return inside

    def runs(self, folder: Path) -> bool:
        for name in ("postgres", "initdb"):
            try:
                process = self.spawn([str(folder / name), "--version"], cwd="/")
            except PermissionError:
                return False
            if process.wait(_READY_S) != 0:
                return False
        return True

    def spawn(self, command: list[str], cwd: str | None = None) -> subprocess.Popen[bytes]:
        """Run a program as the server's user; it ends when the guard does."""
        user = self.user
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            cwd=cwd or self.layout.cluster,
            env=_ENVIRONMENT,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
            umask=0o077,
            preexec_fn=self.die_with_guard,
        )

    def die_with_guard(self) -> None:
        if self.libc is not None:
            self.libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT))
            if os.getppid() != self.pid:
                os._exit(1)

    # --- start and stop -------------------------------------------------------------------------------

    def create_cluster(self) -> None:
        data = self.layout.data
        for half in self.layout.cluster.glob("data.new-*"):
            shutil.rmtree(half, ignore_errors=True)
        if data.exists():
            return
        half = self.layout.cluster / f"data.new-{self.pid}"
        command = [str(self.folder / "initdb"), "--pgdata", str(half), "--username=postgres", "--auth=trust"]
        command += ["--encoding=UTF8", "--locale=C", "--no-instructions"]
        if not self.order.fsync:
            command.append("--no-sync")
        if self.spawn(command).wait(_INITDB_S) != 0:
            raise Failure("initdb failed")
        half.rename(data)

    def started(self) -> subprocess.Popen[bytes]:
        """Start the server and wait until it takes connections."""
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.layout.cluster), "port": PORT}
        settings |= {"log_checkpoints": "off"}
        if not self.order.fsync:
            settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        command = [str(self.folder / "postgres"), "-D", str(self.layout.data)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        server = self.spawn(command)
        deadline = time.monotonic() + _READY_S
        while not self.is_ready(server.pid):
            if server.poll() is not None:
                raise Failure(f"the server ended at its start, with code {server.returncode}")
            if self.stopping or time.monotonic() >= deadline:
                self.stop(server)
                raise Failure("the server was stopped before it was ready")
            time.sleep(_POLL_S / 10)
        return server

    def is_ready(self, pid: int) -> bool:
        lines = self.pid_lines()
        return len(lines) > 7 and lines[0] == str(pid) and lines[7] == "ready"

    def pid_lines(self) -> list[str]:
        try:
            return [line.strip() for line in self.layout.pid_file.read_text(errors="replace").splitlines()]
        except FileNotFoundError:
            return []

    def stop(self, server: subprocess.Popen[bytes]) -> None:
        """Fast shutdown, then an immediate one, then the end."""
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            server.send_signal(number)
            try:
                server.wait(_FAST_S)
            except subprocess.TimeoutExpired:
                continue
            return

    # --- what others left -----------------------------------------------------------------------------

    def clear_remains(self) -> None:
        """Stop the server of a guard that was killed, and remove stale lock files if they are proven stale."""
        lines = self.pid_lines()
        claimed = int(lines[0]) if lines and lines[0].isdigit() else None
        for number in (signal.SIGINT, signal.SIGQUIT):
            residents = self.residents()
            if residents is None:
                return  # no proof to be had here: PostgreSQL's own checks decide
            if claimed in residents:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(claimed, number)
            if not self.left_alone(residents):
                continue
            self.layout.pid_file.unlink(missing_ok=True)
            self.layout.socket_lock.unlink(missing_ok=True)
            return
        pids = ", ".join(map(str, sorted(self.residents() or ())))
        raise Failure(f"processes still work in {self.layout.data}: {pids}: end them, or leave that folder")

    def left_alone(self, residents: set[int]) -> bool:
        """Wait until no process has the data folder as its working directory."""
        deadline = time.monotonic() + _FAST_S
        left: set[int] | None = residents
        while left and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            left = self.residents()
        return left == set()

    def residents(self) -> set[int] | None:
        """Return the processes whose working directory is the data folder; None if that can't be known."""
        if not self.layout.data.exists():
            return set()
        data = os.path.realpath(self.layout.data)
        if not Path("/proc/self/cwd").exists():
            return residents_by_lsof(data)
        user = self.user
        if user is None:
            return residents_by_proc(data)
        # Even root may not look at another user's processes without a capability that containers lack; a
        # process of that user may.
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(user.pw_gid)
                os.setuid(user.pw_uid)
                os.write(writing, json.dumps(sorted(residents_by_proc(data))).encode())
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as lines:
            text = lines.read()
        os.waitpid(child, 0)
        return set(json.loads(text)) if text else None


def residents_by_proc(data: str) -> set[int]:
    found = set()
    for entry in os.listdir("/proc"):  # noqa: PTH208  (names are all that is needed)
        if entry.isdigit():
            try:
                if os.readlink(f"/proc/{entry}/cwd") == data:  # noqa: PTH115
                    found.add(int(entry))
            except OSError:
                continue  # gone, a zombie, or of a user who can't be ours
    return found


def residents_by_lsof(data: str) -> set[int] | None:
    lsof = shutil.which("lsof", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if lsof is None:
        return None
    command = [lsof, "-t", "-a", "-d", "cwd", "--", data]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return {int(pid) for pid in answer.stdout.split()}


def make_readable(tree: Path) -> None:
    """Let everybody read a tree of copied files."""
    for folder, _, names in os.walk(tree):
        Path(folder).chmod(0o755)
        for name in names:
            path = Path(folder) / name
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                path.chmod(0o755 if mode & 0o100 else 0o644)


def tail(path: Path, lines: int = 5) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    return " | ".join(text.strip().splitlines()[-lines:])


def main(order: Order) -> NoReturn:
    """Become a process of its own, report once on standard output, and guard."""
    if os.fork() != 0:
        os._exit(0)
    os.chdir("/")
    os.umask(0o077)
    waiting = True

    def report(error: str) -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            with contextlib.suppress(BrokenPipeError):  # the client is gone; its lock is too
                os.write(1, json.dumps({"error": error}).encode())
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.close(silence)

    guard = Guard(order)
    try:
        guard.run(report)
    except (Failure, OSError, subprocess.SubprocessError) as error:
        os.write(guard.log, f"guard: {error}\n".encode())
        report(f"{error} (log {guard.layout.log}: {tail(guard.layout.log)})")
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(Order.load(sys.argv[1]))
