"""The commands; an error that flowq raises on purpose is one line and exit code 1."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from flowq.errors import ConfigurationError, FlowqError
from flowq.policy import RateLimit
from flowsim.demo import demo as demonstrate
from flowsim.workload import Workload

__all__ = ["app", "run"]

app = typer.Typer(
    help="Simulate what flowq does.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def run() -> None:
    """Run the command line."""
    try:
        app()
    except FlowqError as error:
        sys.exit(f"flowsim: {error}")


@app.callback()
def _root() -> None:
    """Simulate what flowq does: the same policies, over a virtual clock."""


@app.command()
def demo(
    trace: Annotated[
        Path | None, typer.Option(help="A recorded trace: CSV (also .gz) or Parquet, sorted by time.")
    ] = None,
    time: Annotated[str, typer.Option(help="The trace's column of seconds.")] = "t_s",
    key: Annotated[
        str | None, typer.Option(help="Its column of keys; by default key, else user, if there.")
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(help="Its column of service times in seconds; by default service_s, if there."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="What your API allows, as 10/s; by default sized from the calls.")
    ] = None,
    burst: Annotated[
        float, typer.Option(help="With --rate: how many may start at once; 1 is a hard quota.")
    ] = 1,
    workers: Annotated[int | None, typer.Option(help="How many; by default sized from the calls.")] = None,
    report: Annotated[Path, typer.Option(help="Where the HTML report goes.")] = Path("report.html"),
    database_url: Annotated[
        str | None, typer.Option(help="A PostgreSQL; by default the environment's, else an embedded one.")
    ] = None,
) -> None:
    """One burst through every policy: simulated, on PostgreSQL, and in real time."""
    workload = None if trace is None else read_trace(trace, time, key, service)
    limit = None if rate is None else RateLimit(rate, burst)
    if not report.absolute().parent.is_dir():
        raise ConfigurationError(
            f"report must go to a folder that exists: {report.absolute().parent} is none"
        )
    demonstrate(workload, report=report, dsn=database_url, limit=limit, workers=workers)


def read_trace(path: Path, time: str, key: str | None, service: str | None) -> Workload:
    """Read a trace; the usual columns are used if they are there."""
    if not path.is_file():
        raise ConfigurationError(f"trace must be a file: {path} is none")
    if path.suffix == ".parquet":
        return Workload.from_parquet(path, time=time, key=key, service=service)
    try:
        columns = pd.read_csv(path, nrows=0).columns
    except pd.errors.EmptyDataError:
        raise ConfigurationError(f"trace must have a header and at least one call: {path} is empty") from None
    key = key or next((name for name in ("key", "user") if name in columns), None)
    service = service or ("service_s" if "service_s" in columns else None)
    return Workload.from_csv(path, time=time, key=key, service=service)
