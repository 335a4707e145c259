"""The commands, one function each; an error that flowq raises on purpose is one line and exit code 1."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flowq.cli.supervisor import Supervisor
from flowq.cli.visible import VisibleFormatter, visible
from flowq.errors import ConfigurationError, FlowqError
from flowq.job import SHED_REASONS
from flowq.queue import AsyncQueue, DeadLetter, Queue
from flowq.units import duration_us
from flowq.worker import Worker

__all__ = ["app", "load", "run"]

app = typer.Typer(
    help="Workers, migrations and dead letters of a flowq queue.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
dead = typer.Typer(help="Jobs that failed for good, or were shed.", no_args_is_help=True)
app.add_typer(dead, name="dead")

_WHOLE = 100_000
_MARGIN_S = 5.0
"""What a worker gets, beyond its grace, to cancel handlers, settle and say goodbye."""

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url", help="Default: FLOWQ_DATABASE_URL, DATABASE_URL, else an embedded server."
    ),
]
Namespace = Annotated[str, typer.Option(help="Which namespace.")]
Task = Annotated[str | None, typer.Option(help="Only of this task.")]


def _known_reason(value: str | None) -> str | None:
    if value is not None and value not in SHED_REASONS:
        raise typer.BadParameter(f"must be {', '.join(SHED_REASONS)}: {visible(value)!r}")
    return value


Reason = Annotated[
    str | None,
    typer.Option(help=f"Only shed ones, by what: {', '.join(SHED_REASONS)}.", callback=_known_reason),
]


def run() -> None:
    """Run the command line."""
    try:
        app()
    except FlowqError as error:
        sys.exit(f"flowq: {visible(str(error))}")


def load(target: str) -> Queue | AsyncQueue:
    """Import ``module:attribute`` from the current directory.

    Raises
    ------
    ConfigurationError
        It isn't of that form, or what it names is missing or is no queue.
    """
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigurationError(f"target must be module:attribute, as in app:queue: {target!r}")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise ConfigurationError(f"target must name a module and its queue, as in app:queue: {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(f"module {module_name!r} is not found from {here}: {error}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigurationError(f"{module_name!r} has no {attribute!r}: name the queue, as in app:queue")
        found = getattr(found, part)
    if not isinstance(found, Queue | AsyncQueue):
        raise ConfigurationError(f"{target} must be a Queue or an AsyncQueue: {type(found).__name__}")
    return found


@app.command()
def worker(
    target: Annotated[
        str, typer.Argument(help="module:attribute of a Queue or an AsyncQueue, as app:queue.")
    ],
    queues: Annotated[str, typer.Option(help="Names of the queues to serve, with commas.")] = "default",
    concurrency: Annotated[int, typer.Option(min=1, help="Jobs at once, in each process.")] = 4,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    burst: Annotated[bool, typer.Option(help="Return once the queues are drained.")] = False,
    lease: Annotated[
        str, typer.Option(help="How long after a worker vanished its jobs start elsewhere.")
    ] = "15s",
    grace: Annotated[str, typer.Option(help="How long running jobs may go on after a stop.")] = "30s",
    verbose: Annotated[bool, typer.Option(help="Log more.")] = False,
    supervised: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run the jobs of some queues until SIGTERM or SIGINT; a second signal stops at once."""
    from flowq.postgres.server import resolve_server

    handler = logging.StreamHandler()
    handler.setFormatter(VisibleFormatter("%(asctime)s %(levelname)s %(process)d %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
    if not verbose:
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    queue = load(target)
    names = [name.strip() for name in queues.split(",") if name.strip()]
    if not names:
        raise ConfigurationError(f"queues must name at least one: {queues!r}")
    grace_s = duration_us(grace, "grace", allow_zero=True) / 1e6
    one = Worker(queue, names, concurrency, lease, grace=grace, burst=burst)
    if supervised:
        threading.Thread(target=_stop_with_parent, args=(one, grace_s), daemon=True).start()
        _work(one, grace_s)
        return
    server = resolve_server(queue.dsn)
    try:
        print(f"flowq: {server.describe()}", flush=True)
        if processes == 1:
            _work(one, grace_s)
            return
        options = [
            f"--queues={queues}",
            f"--concurrency={concurrency}",
            f"--lease={lease}",
            f"--grace={grace}",
        ]
        options += ["--burst"] * burst + ["--verbose"] * verbose
        command = [sys.executable, "-m", "flowq.cli", "worker", target, "--supervised", *options]
        raise typer.Exit(Supervisor(command, processes, restart=not burst).run())
    finally:
        server.release()


@app.command()
def migrate(database_url: DatabaseUrl = None) -> None:
    """Bring a database to the schema of this flowq; safe to repeat."""
    from flowq.postgres import migrate as migrations
    from flowq.postgres.server import resolve_server

    server = resolve_server(database_url)
    try:
        print(f"flowq: {server.describe()}", flush=True)
        applied = migrations.migrate(server.dsn)
    finally:
        server.release()
    print(f"flowq: applied {', '.join(map(str, applied))}" if applied else "flowq: the schema is up to date")


@dead.command("list")
def dead_list(
    database_url: DatabaseUrl = None,
    namespace: Namespace = "default",
    task: Task = None,
    reason: Reason = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List dead letters, newest first, a line each; --json has them whole."""
    with Queue(database_url, namespace=namespace) as queue:
        letters = queue.dead_letters(limit, task=task, reason=reason)
    if as_json:
        for letter in letters:
            print(json.dumps(vars(letter), default=str, ensure_ascii=False))
        return
    if not letters:
        print("no dead letters")
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("id", "died (UTC)", "task", "queue", "retries"):
        table.add_column(name, no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("why", min_width=10)
    for letter in letters:
        died = letter.died_at.replace(tzinfo=None).isoformat(" ", "seconds")
        row = (str(letter.id), died, letter.task, letter.queue, str(letter.retry_count), _why(letter))
        table.add_row(*(Text(visible(text, ""), no_wrap=True, overflow="ellipsis") for text in row))
    # A file or a pipe gets whole lines; a terminal as much as it is wide.
    Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WHOLE).print(table)


@dead.command("retry")
def dead_retry(
    ids: Annotated[list[int] | None, typer.Argument(help="Ids of the jobs.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All of them, or all that --task and --reason name.")
    ] = False,
    database_url: DatabaseUrl = None,
    namespace: Namespace = "default",
    task: Task = None,
    reason: Reason = None,
) -> None:
    """Enqueue dead letters again; a shed job is not shed a second time."""
    if bool(ids) == every:
        raise typer.BadParameter("give ids, or --all")
    if ids and (task is not None or reason is not None):
        raise typer.BadParameter("--task and --reason go with --all")
    with Queue(database_url, namespace=namespace) as queue:
        if ids:
            renewed = queue.retry_dead(ids)
            for id in ids:
                print(f"{id} -> {renewed[id]}" if id in renewed else f"{id}: no such dead letter")
            if len(renewed) < len(set(ids)):
                raise typer.Exit(1)
            return
        print(f"flowq: {len(queue.retry_dead(task=task, reason=reason))} enqueued again")


@dead.command("purge")
def dead_purge(
    ids: Annotated[list[int] | None, typer.Argument(help="Ids of the jobs.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="All of them, or all that --task and --reason name.")
    ] = False,
    database_url: DatabaseUrl = None,
    namespace: Namespace = "default",
    task: Task = None,
    reason: Reason = None,
) -> None:
    """Remove dead letters for good; their jobs stay in the archive."""
    if bool(ids) == every:
        raise typer.BadParameter("give ids, or --all")
    if ids and (task is not None or reason is not None):
        raise typer.BadParameter("--task and --reason go with --all")
    with Queue(database_url, namespace=namespace) as queue:
        count = queue.purge_dead(ids) if ids else queue.purge_dead(task=task, reason=reason)
    print(f"flowq: {count} removed")
    if ids and count < len(set(ids)):
        raise typer.Exit(1)


def _why(letter: DeadLetter) -> str:
    """The first line of a traceback's exception, or the whole of a shed job's reason."""
    lines = letter.error.strip().splitlines() or [""]
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    return lines[min(frames[-1] + 1, len(lines) - 1) if frames else 0]


def _work(one: Worker, grace_s: float) -> None:
    """Work until SIGTERM or SIGINT, and end in time whatever the handlers do.

    Handlers of signals that run in the event loop would not run while one blocks it, so these are the interpreter's.
    """
    asked = 0

    def signalled(number: int, _: object) -> None:
        nonlocal asked
        asked += 1
        logging.getLogger("flowq.worker").info(
            "%s, stopping%s", signal.Signals(number).name, " at once" * (asked > 1)
        )
        one.stop(at_once=asked > 1)
        _end_after(_MARGIN_S if asked > 1 else grace_s + _MARGIN_S, 128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signalled)
    asyncio.run(one.run_async())


def _end_after(seconds: float, code: int) -> None:
    """End this process if it is still there by then: its leases lapse, and its jobs start elsewhere."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()


def _stop_with_parent(one: Worker, grace_s: float) -> None:
    """Stop when the supervisor's end of this pipe closes, however it ended."""
    while os.read(0, 1):  # not through sys.stdin, whose lock would be held at the end of the interpreter
        pass
    one.stop()
    _end_after(grace_s + _MARGIN_S, 1)
