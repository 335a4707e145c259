"""The world: its order of events, its books, and that it is what plain recursions say."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowq import Queue
from flowq.policy import Coalesce, CoDel, Concurrency, Debounce, Flow, RateLimit
from flowq.task import TaskSpec
from flowsim import Workload, exponential, simulate
from flowsim.experiment import plan
from flowsim.world import World, over_memory
from sim.oracle import fifo_starts_us

S = 1_000_000


def calls_at(*instants_s: float, keys: Any = None, service_s: Any = None) -> Workload:
    return Workload(
        np.array([round(at * S) for at in instants_s]),
        None if keys is None else np.array(list(keys), dtype=object),
        None if service_s is None else np.array([round(each * S) for each in service_s]),
    )


def starts(result: Any) -> list[float]:
    return result.jobs["start_s"].tolist()  # type: ignore[no-any-return]


def test_a_cap_below_the_workers_is_as_so_many_workers() -> None:  # A1
    calls = Workload.poisson("40/s", "30s", seed=1)
    capped = simulate(Flow(Concurrency(2)), calls, workers=5, service="40ms")
    assert starts(capped) == starts(simulate(Flow(), calls, workers=2, service="40ms"))


def test_the_cap_of_a_whole_queue_is_simulated() -> None:  # A1
    queue = Queue()

    @queue.task
    def work() -> None: ...

    queue.set_queue_concurrency("default", 1)
    result = simulate(queue, calls_at(0, 0, 0), workers=3, service="1s")
    assert starts(result) == [0, 1, 2]


# --- plain queues --------------------------------------------------------------------------------------------------


@given(
    gaps=st.lists(st.sampled_from([0, 0, 1, 3, 10]), min_size=1, max_size=60),
    services=st.lists(st.sampled_from([0, 1, 2, 7, 30]), min_size=60, max_size=60),
    workers=st.integers(1, 4),
)
def test_without_policies_it_is_first_come_first_served(
    gaps: list[int], services: list[int], workers: int
) -> None:
    arrivals_us = np.cumsum(gaps)
    service_us = np.array(services[: len(gaps)])
    result = simulate(Flow(), Workload(arrivals_us, service_us=service_us), workers=workers)
    expected = fifo_starts_us(arrivals_us.tolist(), service_us.tolist(), workers)
    assert result.log.start_us.tolist() == expected
    assert result.log.end_us.tolist() == (np.array(expected) + service_us).tolist()


def test_policies_without_limits_change_nothing() -> None:
    calls = Workload.poisson("50/s", "20s", seed=2, keys=10**6).with_service(exponential("70ms"))
    plain = simulate(Flow(), calls, workers=4)
    for flow in (
        Flow(RateLimit("1000000/s", burst=1_000_000), CoDel("1d", "2d")),
        Flow(RateLimit("1000000/s", burst=1_000_000, on_excess="drop")),
        Flow(CoDel("1d", "2d", law="slough")),
    ):
        result = simulate(flow, calls, workers=4)
        assert result.log.start_us.tolist() == plain.log.start_us.tolist()
        assert result.log.end_us.tolist() == plain.log.end_us.tolist()


def test_a_higher_priority_goes_first() -> None:
    queue = Queue("postgresql://nowhere")
    queue.task(name="low")(_handler)
    queue.task(name="high", priority=5)(_other_handler)
    result = simulate(queue, {"low": calls_at(0, 0, 0), "high": calls_at(0.5, 0.5)}, service="1s")
    assert result.jobs["task"].tolist() == ["low", "low", "low", "high", "high"]
    assert starts(result) == [0, 3, 4, 1, 2]


def test_a_queues_own_limit_holds_over_its_tasks() -> None:
    queue = Queue("postgresql://nowhere")
    queue.task(name="a")(_handler)
    queue.task(name="b")(_other_handler)
    queue.set_queue_rate_limit("default", "1/s", burst=1)
    result = simulate(queue, {"a": calls_at(0, 0), "b": calls_at(0, 0)}, workers=9, service="1ms")
    assert sorted(starts(result)) == [0, 1, 2, 3]
    assert "queue default: at most 1/s" in result.policy


def _handler() -> None: ...


def _other_handler() -> None: ...


# --- ties at one instant -------------------------------------------------------------------------------------------


def test_a_call_at_the_instant_of_completion_opens_a_new_job() -> None:
    result = simulate(Flow(Coalesce()), calls_at(0, 0.5, 1, keys="aaa"), service="1s")
    assert result.calls["outcome"].tolist() == ["accepted", "coalesced", "accepted"]
    assert starts(result) == [0, 1]


def test_a_call_at_the_instant_a_debounced_job_starts_opens_a_new_window() -> None:
    flow = Flow(Debounce("1s", "{k}", "10s"))
    result = simulate(flow, calls_at(0, 1, 1.5, keys="aaa"), workers=2, service="5s")
    assert result.calls["outcome"].tolist() == ["accepted", "accepted", "merged"]
    assert starts(result) == [1, 2.5]


def test_a_late_debounced_job_still_takes_calls() -> None:
    flow = Flow(Debounce("1s", "{k}", "2s"))
    result = simulate(flow, calls_at(0, 0.2, 2, 4, keys="abbb"), workers=1, service="5s")
    assert result.calls["outcome"].tolist() == ["accepted", "accepted", "merged", "merged"]
    assert starts(result) == [1, 6]
    assert result.jobs["eligible_s"].tolist() == [1, 2.2]


def test_a_worker_that_gets_free_at_an_arrival_takes_what_waited_first() -> None:
    result = simulate(Flow(), calls_at(0, 0.5, 1), service="1s")
    assert starts(result) == [0, 1, 2]


def test_a_token_that_falls_due_at_an_arrival_goes_to_what_waited() -> None:
    result = simulate(Flow(RateLimit("1/s", burst=1)), calls_at(0, 0.5, 1), workers=9, service="1ms")
    assert starts(result) == [0, 1, 2]


def test_service_that_takes_no_time_frees_the_worker_before_the_next_call_of_the_instant() -> None:
    result = simulate(Flow(Coalesce()), calls_at(3, 3, 3, keys="aaa"), service=0)
    assert result.calls["outcome"].tolist() == ["accepted"] * 3
    assert starts(result) == [3, 3, 3]


# --- drops and sheds -----------------------------------------------------------------------------------------------


def test_what_waits_for_a_worker_is_no_excess() -> None:  # D1a
    flow = Flow(RateLimit("10/s", burst=1, on_excess="drop"))
    result = simulate(flow, calls_at(*range(6)), service="14s")
    assert result.jobs["outcome"].tolist() == ["succeeded"] * 6


def test_excess_is_judged_while_a_worker_is_free() -> None:  # D1, D1a
    flow = Flow(RateLimit("1/s", burst=1, on_excess="drop"))
    result = simulate(flow, calls_at(0, 0.1, 1.0, 1.05), workers=2, service="10s")
    # At 0.1 s there is a worker and no token. At 1 s the second worker starts one; the last finds a token at 10 s.
    assert result.jobs["outcome"].tolist() == ["succeeded", "shed", "succeeded", "succeeded"]
    assert result.jobs["end_s"].tolist() == [10, 0.1, 11, 20]


def test_more_sheds_than_a_transaction_takes_are_all_shed_at_their_instant() -> None:
    flow = Flow(RateLimit("1/h", burst=1, on_excess="drop"))
    queue_of = Workload(np.concatenate([np.zeros(1, np.int64), np.full(2_500, 5 * S)]), keys=np.arange(2_501))
    result = simulate(flow, queue_of, workers=3, service="1s")
    shed = result.jobs[result.jobs["outcome"] == "shed"]
    assert len(shed) == 2_500
    assert (shed["end_s"] == 5).all()
    assert (shed["reason"] == "rate_limit").all()


def test_debounced_excess_falls_due_and_is_dropped_once_a_worker_is_free() -> None:  # D1a
    flow = Flow(Debounce("1s", "{k}", "1s"), RateLimit("1/h", burst=1, on_excess="drop"))
    result = simulate(flow, calls_at(0, 1, keys="ab"), service="1m")
    assert result.jobs["outcome"].tolist() == ["succeeded", "shed"]
    assert result.jobs["end_s"].tolist() == [61, 61]


def test_codel_sheds_and_says_why() -> None:
    result = simulate(Flow(CoDel("50ms", "500ms")), Workload.poisson("40/s", "20s", seed=1), service="40ms")
    shed = result.jobs[result.jobs["outcome"] == "shed"]
    assert len(shed) > 20
    assert (shed["reason"] == "codel").all()
    assert shed["start_s"].isna().all()


# --- the run's end -------------------------------------------------------------------------------------------------


def test_until_stops_before_its_instant_and_the_books_say_what_is_left() -> None:
    result = simulate(Flow(), calls_at(0, 0.2, 0.4, 1, 7), service="0.5s", until="1s")
    books = result.books()
    assert (books.offered, books.succeeded, books.running, books.pending) == (3, 1, 1, 1)
    assert result.duration_s == 1
    assert result.jobs["outcome"].tolist() == ["succeeded", "running", "pending"]


def test_until_before_the_first_call_is_an_empty_run() -> None:
    result = simulate(Flow(), calls_at(5), service="1s", until="1s")
    assert result.books() == (0,) * 8
    assert len(result.jobs) == len(result.calls) == 0


@given(data=st.data())
def test_books_balance_whatever_happens(data: st.DataObject) -> None:
    keyed = data.draw(st.sampled_from([(), (Coalesce(),), (Debounce("1s", "{k}", "2s"),)]))
    limited = data.draw(
        st.sampled_from([(), (RateLimit("2/s", burst=1),), (RateLimit("2/s", on_excess="drop"),)])
    )
    shed = data.draw(st.sampled_from([(), (CoDel("100ms", "1s"),), (CoDel("100ms", "1s", law="slough"),)]))
    arrivals_us = np.cumsum(
        data.draw(st.lists(st.sampled_from([0, 1, 50_000, 300_000]), min_size=1, max_size=40))
    )
    calls = Workload(arrivals_us, keys=arrivals_us % 3)
    until = data.draw(st.sampled_from([None, "2s", "5s"]))
    result = simulate(Flow(*keyed, *limited, *shed), calls, workers=2, service="400ms", until=until)
    books = result.books()
    assert books.offered == sum(books[1:]) == len(result.calls)
    assert result.jobs["calls"].sum() == books.offered
    if until is None:
        assert books.pending == books.running == 0
        assert books.offered == len(arrivals_us)
    depth = result.depth()
    assert (
        depth["depth"].iloc[-1]
        == (result.jobs["outcome"] == "pending").sum() - (result.jobs["eligible_s"] > result.duration_s).sum()
    )
    assert (depth["depth"] >= 0).all()
    assert depth["running"].between(0, 2).all()


def test_books_that_do_not_balance_are_an_error() -> None:
    planned = plan(Flow(), calls_at(0, 1), service="1s")

    def forgetful(factory: Any, now_us: int, /) -> Any:
        result = store(factory, now_us)
        return result._replace(settled=frozenset()) if hasattr(result, "settled") else result

    store = over_memory()
    with pytest.raises(RuntimeError, match="0 of 2 outcomes were taken by the store"):
        World(forgetful, planned.gates, planned.offer(), 1).run()


# --- the same again ------------------------------------------------------------------------------------------------

FLOWS = {
    "debounce, drop and codel": Flow(
        Debounce("1s", "{k}", "3s"), RateLimit("3/s", burst=2, on_excess="drop"), CoDel("50ms", "500ms")
    ),
    "coalesce and limit": Flow(Coalesce(), RateLimit("9/s")),
}


def fingerprint() -> str:
    calls = Workload.bursts("60/s", "30s", on="2s", off="4s", seed=3, keys=20, zipf=1.0)
    sha = hashlib.sha256()
    for flow in FLOWS.values():
        result = simulate(flow, calls, workers=3, service=exponential("200ms"), seed=1)
        for frame in (result.jobs, result.calls):
            sha.update(pd.util.hash_pandas_object(frame.astype(str), index=False).to_numpy().tobytes())
    return sha.hexdigest()


def test_processes_with_other_hash_seeds_give_the_same_bytes() -> None:
    program = "from sim.test_world import fingerprint; print(fingerprint())"
    found = {fingerprint()}
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True
        )
        found.add(done.stdout.strip())
    assert len(found) == 1


def test_a_task_is_simulated_as_its_flow_is() -> None:
    calls = Workload.poisson("9/s", "30s", seed=1)
    flow = Flow(RateLimit("5/s"))
    one = simulate(flow, calls, workers=2, service="100ms")
    other = simulate(TaskSpec("charge", "billing", flow), calls, workers=2, service="100ms")
    assert one.log.start_us.tolist() == other.log.start_us.tolist()
    assert other.jobs["task"].unique().tolist() == ["charge"]
