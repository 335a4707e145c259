"""Start or join an embedded server, and hold it: the client's side of :mod:`flowq.postgres.server.guard`.

Theory of operation
-------------------
All clients of one user and checkout that ask for the same programs and settings share a private folder, and so one
server. A client arrives under ``start.lock``, one at a time: it takes ``use.lock`` shared, starts a guard if
``guard.lock`` is free, waits until the server answers, and leaves ``start.lock``. It keeps ``use.lock`` for as long
as it wants the server; the guard stops the server when nobody does.

The folder is short, because the path of a socket may have about a hundred bytes only, and lies under the temporary
folder, never in a project: those can be deep, and on a network.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import psycopg

from flowq.errors import ServerUnavailable
from flowq.postgres.server import guard
from flowq.postgres.server.binaries import Binaries

__all__ = ["Hold", "attach", "home_for"]

_SOCKET_BYTES: Final = 103
"""The longest path of a socket on macOS; Linux has four more."""
_START_S: Final = 180.0
_POLL_S: Final = 0.02
_CONNECT_S: Final = 10
_SUPERUSER: Final = "postgres"


class Hold(NamedTuple):
    """A server in use: it runs at least until `lock` is closed."""

    home: Path
    lock: int

    def dsn(self, database: str) -> str:
        """Return the address of a database."""
        folder = quote(str(guard.Layout(self.home).cluster), safe="/")
        return f"postgresql:///{quote(database)}?host={folder}&port={guard.PORT}&user={_SUPERUSER}"

    def close(self) -> None:
        """Stop using the server."""
        os.close(self.lock)


def attach(
    binaries: Binaries,
    *,
    fsync: bool = True,
    grace_s: float = 1.0,
    ephemeral: bool = False,
    home: Path | None = None,
) -> Hold:
    """Start the server of a folder if it does not run, and use it.

    Parameters
    ----------
    binaries
        The programs to start it with.
    fsync
        Whether commits survive a crash of the machine. Off is for unit tests.
    grace_s
        How long it runs on after its last client has gone.
    ephemeral
        Whether its data is removed when it stops.
    home
        The private folder; by default :func:`home_for` names it.

    Raises
    ------
    ServerUnavailable
        It can't be started; the message ends with the end of its log.
    """
    home = home_for(binaries, fsync=fsync, ephemeral=ephemeral) if home is None else home
    order = guard.Order(
        str(home), str(binaries.folder), str(binaries.base), binaries.trees, fsync, grace_s, ephemeral
    )
    deadline = time.monotonic() + _START_S
    while True:
        _make_private(home)
        start = _locked(guard.Layout(home).start_lock, fcntl.LOCK_EX, deadline)
        if start is None:
            continue
        try:
            use = _locked(guard.Layout(home).use_lock, fcntl.LOCK_SH, deadline)
            if use is None:
                continue
            hold = Hold(home, use)
            try:
                _wait_until_served(hold, order, deadline)
            except BaseException:
                hold.close()
                raise
            return hold
        finally:
            os.close(start)


def home_for(binaries: Binaries, *, fsync: bool = True, ephemeral: bool = False) -> Path:
    """Return the private folder of this user, this checkout, these programs and these choices.

    Raises
    ------
    ServerUnavailable
        No temporary folder is short enough, and open to the user that runs the server.
    """
    checkout = Path(__file__).resolve().parents[3]
    parts = (str(checkout), str(binaries.folder), f"{fsync=}", f"{ephemeral=}")
    key = sha256("\0".join(parts).encode()).hexdigest()[:8]
    bases = [Path(folder).resolve() for folder in (tempfile.gettempdir(), "/tmp")]
    for base in bases:
        home = base / f"flowq-{os.geteuid()}-{key}-{binaries.major}"
        if len(os.fsencode(guard.Layout(home).socket)) <= _SOCKET_BYTES and _is_open(base):
            return home
    raise ServerUnavailable(
        f"the temporary folder must be short (a socket's path has at most {_SOCKET_BYTES} bytes), writable and, for "
        f"root, open to other users: {bases[0]}. Set TMPDIR to one that is"
    )


def _is_open(base: Path) -> bool:
    """Return whether the server's user can reach what is in a folder; for root that is another user."""
    if not os.access(base, os.W_OK | os.X_OK):
        return False
    return os.geteuid() != 0 or all(folder.stat().st_mode & stat.S_IXOTH for folder in (base, *base.parents))


def _make_private(home: Path) -> None:
    """Make the folder; as root, others may pass to what is theirs in it, but not look around."""
    try:
        home.mkdir(mode=0o700)
        home.chmod(0o711 if os.geteuid() == 0 else 0o700)
    except FileExistsError:
        info = home.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise ServerUnavailable(f"{home} must be a folder of this user alone: remove it") from None
    except OSError as error:
        raise ServerUnavailable(f"the private folder of the server can't be made: {error}") from error


def _locked(path: Path, mode: int, deadline: float) -> int | None:
    """Open and lock a file; None if it was removed meanwhile, with its folder, by a guard that ended."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    try:
        while True:
            try:
                fcntl.flock(lock, mode | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ServerUnavailable(f"another process holds {path} for too long") from None
                time.sleep(_POLL_S)
        if os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    except FileNotFoundError:
        pass
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _wait_until_served(hold: Hold, order: guard.Order, deadline: float) -> None:
    """Return when the server answers, having started it if nobody guards it."""
    lock = guard.Layout(hold.home).guard_lock
    while True:
        if not _is_held(lock):
            _start_guard(order, deadline)
        try:
            psycopg.connect(hold.dsn("postgres"), connect_timeout=_CONNECT_S).close()
        except psycopg.OperationalError as error:
            if time.monotonic() >= deadline:
                raise ServerUnavailable(f"the embedded server does not answer: {error}") from error
            time.sleep(_POLL_S)  # its guard is about to start it again
        else:
            return


def _is_held(path: Path) -> bool:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)


def _start_guard(order: guard.Order, deadline: float) -> None:
    """Run the guard and wait for its word; its streams are its own, so that nobody who waits for ours waits for it."""
    command = [sys.executable, "-I", guard.__file__, order.dump()]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=max(deadline - time.monotonic(), 1.0),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServerUnavailable(f"the guard of the embedded server can't be run: {error}") from error
    word = json.loads(answer.stdout) if answer.stdout else {"error": "its guard ended without a word"}
    if word["error"]:
        raise ServerUnavailable(f"the embedded server can't be started: {word['error']}")
