"""Memory and PostgreSQL decide alike: the same world over both, job by job; and a difference would be told."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pytest

from flowq import Queue
from flowq.errors import SchemaMismatch
from flowq.policy import Coalesce, CoDel, Debounce, Flow, RateLimit
from flowsim import ConformanceReport, Workload, conformance, exponential, validate
from flowsim.experiment import plan
from flowsim.validate import over_postgres
from flowsim.world import over_memory

CALLS = Workload.bursts("40/s", "20s", on="2s", off="3s", idle_rate="2/s", seed=1, keys=8, zipf=1.0)
FLOWS = {
    "nothing": Flow(),
    "defer": Flow(RateLimit("12/s", burst=3)),
    "drop": Flow(RateLimit("12/s", burst=3, on_excess="drop")),
    "codel": Flow(CoDel("50ms", "500ms")),
    "slough": Flow(RateLimit("25/s"), CoDel("50ms", "500ms", law="slough")),
    "debounce": Flow(Debounce("500ms", "{k}", "2s")),
    "debounce and drop": Flow(Debounce("200ms", "{k}", "1s"), RateLimit("3/s", burst=1, on_excess="drop")),
    "coalesce": Flow(Coalesce(), RateLimit("8/s", burst=2)),
    "all": Flow(
        Debounce("100ms", "{k}", "300ms"), RateLimit("15/s", burst=2), CoDel("50ms", "500ms", max_shed=3)
    ),
}


@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_memory_and_postgres_agree_on_every_call_and_job(flow: Flow, database_url: str) -> None:
    report = conformance(flow, CALLS, workers=3, service=exponential("120ms"), seed=2, dsn=database_url)
    assert report.ok, report.first()
    assert report.first() == ""
    assert "no difference" in repr(report)
    assert "agree" in report._repr_html_()
    assert len(report.memory.calls) == len(CALLS)
    with psycopg.connect(database_url) as conn:
        for table in ("queue", "gate", "job", "archive", "dead_letter", "line"):
            assert conn.execute(f"select count(*) from flowq.{table}").fetchone() == (0,), table


def test_a_run_that_is_stopped_agrees_on_what_is_left(database_url: str) -> None:
    report = conformance(FLOWS["defer"], CALLS, workers=2, service="200ms", until="11s", dsn=database_url)
    assert report.ok, report.first()
    assert report.memory.books().pending > 5
    assert report.memory.books().running == 2


def test_several_tasks_of_a_queue_agree(database_url: str) -> None:
    queue = Queue("postgresql://nowhere")
    queue.task(name="a", rate_limit="9/s")(lambda: None)
    queue.task(name="b", priority=3, rate_limit="20/s", burst=2, on_excess="drop")(lambda: None)
    queue.set_queue_codel("default", "40ms", "300ms")
    queue.set_queue_rate_limit("default", "20/s", burst=4)
    calls = {"a": CALLS, "b": Workload.poisson("10/s", "20s", seed=5)}
    report = conformance(queue, calls, workers=3, service=exponential("90ms"), dsn=database_url)
    assert report.ok, report.first()
    reasons = set(report.memory.jobs["reason"].dropna())
    assert reasons == {"rate_limit", "codel"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("flow", FLOWS.values(), ids=FLOWS)
def test_memory_and_postgres_agree_over_many_calls(flow: Flow, database_url: str) -> None:
    calls = Workload.mmpp(["80/s", "5/s"], ["3s", "5s"], "4m", seed=4, keys=50, zipf=1.0)
    report = conformance(flow, calls, workers=4, service=exponential("80ms"), seed=2, dsn=database_url)
    assert report.ok, report.first()


def test_a_named_server_without_the_schema_is_refused(empty_database_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="flowq migrate"):
        conformance(Flow(), CALLS, service="1ms", dsn=empty_database_url)


# --- a difference would be told ------------------------------------------------------------------------------------


@pytest.fixture
def differing(monkeypatch: pytest.MonkeyPatch) -> ConformanceReport:
    """A "PostgreSQL" that starts call 2's job a second late, by lying about its service time and the call before."""
    from contextlib import contextmanager

    calls = Workload(
        np.array([0, 1_000_000, 1_500_000, 9_000_000]), keys=np.array(["a", "b", "c", "c"], dtype=object)
    )

    @contextmanager
    def elsewhere(_dsn: str | None) -> Any:
        drive = over_memory()

        def slow(factory: Any, now_us: int, /) -> Any:
            result = drive(factory, now_us)
            return result._replace(started=[]) if _starts(result, 1) and now_us == 1_500_000 else result

        yield slow, "default", "PostgreSQL of a test"

    planned = plan(Flow(), calls, workers=2, service="1s")
    monkeypatch.setattr(validate, "over_postgres", elsewhere)
    monkeypatch.setattr(validate, "plan", lambda *_args, **_more: planned._replace(until_us=5_000_000))
    return conformance(Flow(), calls, workers=2, service="1s")


def _starts(result: Any, n: int) -> bool:
    return len(getattr(result, "started", ())) == n


def test_a_difference_is_told_with_both_sides(differing: ConformanceReport) -> None:
    assert not differing.ok
    row = differing.differences.iloc[0]
    assert (row["of"], row["number"], row["field"]) == ("job", 2, "outcome")
    assert (row["memory"], row["postgres"]) == ("succeeded", "pending")
    assert differing.first() == (
        "job 2 (opened by call 2 at 1.500000 s, key 'c'): outcome is succeeded in memory and pending in PostgreSQL"
    )
    fields = differing.differences.query("of == 'job'")["field"].tolist()
    assert fields == ["outcome", "start_us", "end_us"]
    assert differing.differences["postgres"].tolist()[1:3] == ["never", "never"]
    html = differing._repr_html_()
    assert "differ" in html
    assert "<table" in html


def test_the_drive_over_postgres_names_its_server(database_url: str) -> None:
    with over_postgres(database_url) as (_drive, namespace, server):
        assert namespace.startswith("conformance-")
        assert server.startswith("PostgreSQL ")
