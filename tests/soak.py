"""Many jobs under random kills, and the balance at the end: ``make soak``, or ``python -m tests.soak --help``.

A server of its own, worker processes of ``flowq worker``, and a hand that every so often kills a worker (SIGKILL), ends
a connection (``pg_terminate_backend``), or kills the whole server, which starts again by itself. Each job writes a row
when it runs. At the end every accepted job must be stored once, in one final state, and must have run; a job that ran
more often than it lost its worker was run twice under one lease, which must not be.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from flowq import Queue
from flowq.errors import StoreError
from flowq.postgres.server import create_database, embedded_server

HERE: Final = Path(__file__).parent
LEASE_S: Final = 4
_BATCH: Final = 1_000
_WAITING: Final = 5_000
"""Jobs that wait before the producer rests; so the queue is never empty and never only a backlog."""
_ALONE: Final = 5
"""Of each batch's jobs: of a task that runs one at a time, over all workers (rule A1)."""
_SERVER_REST_S: Final = 6.0
"""Between two kills of the server: its guard gives up on one that ends again and again at once."""
_ENDING: Final = """
    select count(pg_terminate_backend(pid)) from (
        select pid from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
        order by random() limit 1
    ) chosen
"""
_BALANCE: Final = """
    with stored as (
        select id, state, token, crashes, (payload -> 0 ->> 0)::bigint as n from flowq.archive
        union all
        select id, state, token, crashes, (payload -> 0 ->> 0)::bigint as n from flowq.job
    ),
    ran as (select n, count(*) as runs from public.ran group by n)
    select
        count(*), count(distinct s.id), count(*) filter (where s.state = 'succeeded'),
        count(*) filter (where s.state = 'failed'), count(*) filter (where s.state in ('pending', 'running')),
        count(*) filter (where r.n is null), coalesce(sum(s.crashes), 0), coalesce(sum(r.runs), 0),
        count(*) filter (where r.runs > s.token),
        (
            select count(*)
            from (
                select a.started_us < lag(a.finished_us) over (order by a.started_us) as overlaps
                from flowq.archive a join flowq.line l on l.id = a.line_id
                where l.task = 'alone'
            ) o
            where o.overlaps
        )
    from stored s left join ran r on r.n = s.n
"""


class Balance(NamedTuple):
    """What became of the accepted jobs."""

    accepted: int
    stored: int
    distinct: int
    succeeded: int
    failed: int
    left: int
    never_ran: int
    crashes: int
    runs: int
    ran_more_often_than_started: int
    ran_beside_another_under_a_cap_of_one: int
    worker_kills: int
    connection_kills: int
    server_kills: int
    seconds: float

    def holds(self) -> bool:
        """Whether nothing was lost and nothing was run twice under one lease."""
        return (
            self.accepted <= self.stored == self.distinct == self.succeeded + self.failed
            and self.left == self.never_ran == self.ran_more_often_than_started == 0
            and self.ran_beside_another_under_a_cap_of_one == 0
        )


class Soak:
    """One run.

    Parameters
    ----------
    jobs
        How many are to be accepted.
    processes
        Worker processes.
    server_kills
        Whether the server is killed, too.
    seed
        Of the choice of what is killed and when.
    """

    def __init__(self, jobs: int, processes: int, server_kills: bool, seed: int) -> None:
        self.jobs, self.processes, self.server_kills = jobs, processes, server_kills
        self.random = random.Random(seed)
        self.kills = {"worker": 0, "connection": 0, "server": 0}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.server_killed = time.monotonic()

    def run(self, report: Any = None) -> Balance:
        """Run it in a folder of its own; return the balance."""
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="s", ignore_cleanup_errors=True))
            Path(folder).chmod(0o755)
            before, tempfile.tempdir = tempfile.tempdir, folder
            stack.callback(setattr, tempfile, "tempdir", before)
            server = embedded_server(ephemeral=True)  # with fsync: without it a commit may be lost
            stack.callback(server.release)
            self.dsn = create_database(server, "soak")
            return self._run(report)

    def _run(self, report: Any) -> Balance:
        from flowq.postgres.migrate import migrate

        migrate(self.dsn)
        with psycopg.connect(self.dsn, autocommit=True) as db:
            db.execute("create table public.ran (n bigint not null)")
            self.server_pid = self._postmaster(db)
        begun = time.monotonic()
        try:
            for _ in range(self.processes):
                self._start_worker()
            accepted = self._produce(report)
            self._drained()
        finally:
            for worker in self.workers:
                worker.kill()
                worker.wait()
        with psycopg.connect(self.dsn, autocommit=True) as db:
            row = db.execute(_BALANCE).fetchone()
        assert row is not None
        return Balance(accepted, *map(int, row), *self.kills.values(), round(time.monotonic() - begun, 1))

    def _produce(self, report: Any) -> int:
        """Enqueue in batches, and kill between them. A batch whose reply was lost may be stored all the same."""
        accepted = sent = 0
        with Queue(self.dsn) as queue:
            while accepted < self.jobs:
                batch = range(sent, sent + min(_BATCH, self.jobs - accepted))
                sent = batch.stop
                with suppress(StoreError):
                    accepted += len(queue.enqueue_many([self._call(n, n - batch.start) for n in batch]))
                self._kill_something()
                self._rest(_WAITING)
                if report is not None:
                    report(accepted)
        return accepted

    @staticmethod
    def _call(n: int, nth: int) -> dict[str, Any]:
        if nth < _ALONE:
            return {"task": "alone", "queue": "alone", "args": [n]}
        return {"task": "soaked", "args": [n]}

    def _drained(self) -> None:
        self._rest(0, within_s=300)

    def _rest(self, waiting: int, within_s: float = 120) -> None:
        """Return once at most so many jobs are live; the work must go on by itself."""
        ends = time.monotonic() + within_s
        while True:
            with suppress(psycopg.Error), psycopg.connect(self.dsn, autocommit=True) as db:
                row = db.execute("select count(*) from flowq.job").fetchone()
                if row is not None and row[0] <= waiting:
                    return
            if time.monotonic() > ends:
                raise RuntimeError(
                    f"more than {waiting} jobs are live after {within_s:g} s: work stands still"
                )
            for worker in [worker for worker in self.workers if worker.poll() is not None]:
                # It was started while the server was down, and said so: what runs it starts it again.
                self.workers.remove(worker)
                self._start_worker()
            time.sleep(0.02)

    # --- kills ---

    def _kill_something(self) -> None:
        drawn = self.random.random()
        if drawn < 0.15:
            victim = self.workers.pop(self.random.randrange(len(self.workers)))
            victim.kill()
            victim.wait()
            self._start_worker()
            self.kills["worker"] += 1
        elif drawn < 0.35:
            with suppress(psycopg.Error), psycopg.connect(self.dsn, autocommit=True) as db:
                db.execute(_ENDING)
                self.kills["connection"] += 1
        elif self.server_kills and time.monotonic() - self.server_killed > _SERVER_REST_S:
            with suppress(psycopg.Error, ProcessLookupError):
                with psycopg.connect(self.dsn, autocommit=True) as db:
                    self.server_pid = self._postmaster(db)
                os.kill(self.server_pid, signal.SIGQUIT)  # the immediate mode of pg_ctl
                self.kills["server"] += 1
                self.server_killed = time.monotonic()

    @staticmethod
    def _postmaster(db: psycopg.Connection[Any]) -> int:
        row = db.execute("select pg_read_file('postmaster.pid')").fetchone()
        assert row is not None
        return int(row[0].split()[0])

    def _start_worker(self) -> None:
        environment = {**os.environ, "SOAK_DSN": self.dsn}
        paths = [str(HERE.parent), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        command = [
            sys.executable,
            "-m",
            "flowq.cli",
            "worker",
            "soaked:queue",
            "--queues=default,alone",
            "--concurrency=20",
            f"--lease={LEASE_S}s",
        ]
        quiet = subprocess.DEVNULL
        self.workers.append(subprocess.Popen(command, cwd=HERE, env=environment, stdout=quiet, stderr=quiet))


def main() -> int:
    """Read the arguments, run, print the balance; 1 if it does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-server-kills", action="store_true")
    options = parser.parse_args()
    from tqdm import tqdm

    with tqdm(total=options.jobs, disable=None, unit="job") as bar:
        soak = Soak(options.jobs, options.processes, not options.no_server_kills, options.seed)
        balance = soak.run(lambda accepted: bar.update(accepted - bar.n))
    for name, value in balance._asdict().items():
        print(f"{name.replace('_', ' '):40}{value:>12,}")
    print("the balance", "holds" if balance.holds() else "DOES NOT HOLD")
    return 0 if balance.holds() else 1


if __name__ == "__main__":
    sys.exit(main())
