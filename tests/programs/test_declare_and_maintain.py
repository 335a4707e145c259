"""Declarations (R5, T8), leases (X5), and the transition table."""

from __future__ import annotations

import itertools

import pytest

from flowq.job import FINAL, LIVE, TRANSITIONS, JobEvent, JobState, next_state
from flowq.memory import MemoryStore
from flowq.policy import CoDel, RateLimit, Retry
from flowq.programs import (
    Declaration,
    Failed,
    Request,
    Succeeded,
    claim,
    declare,
    enqueue,
    maintain,
    settle,
)
from flowq.programs.commands import Beat, NewJob, Program, ReadJobs, Register, Round, Unregister

S = 1_000_000


def ask(store: MemoryStore, command: object, at_us: int) -> object:
    def program() -> Program[object]:
        [reply] = yield Round((command,), True)
        return reply

    return store.run(program(), at_us)


def started(store: MemoryStore, worker: int, at_us: int) -> object:
    return store.run(claim("default", 1, worker), at_us).started[0]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(JobState, JobEvent)))
def test_every_state_and_event_is_a_transition_or_refused(state: JobState, event: JobEvent) -> None:
    if (state, event) in TRANSITIONS:
        assert state in LIVE, "a final state wins once (X9)"
        assert next_state(state, event) in JobState
    else:
        with pytest.raises(ValueError, match=f"a {state} job can't {event}"):
            next_state(state, event)


def test_live_and_final_are_all_states() -> None:
    assert set(JobState) == LIVE | FINAL
    assert not LIVE & FINAL


def test_a_lapsed_lease_gives_the_job_back_and_counts_a_crash_apart() -> None:  # X5, T4
    store = MemoryStore()
    worker = ask(store, Register("w", ("default",), 1, 10 * S), 0)
    assert isinstance(worker, int)
    [receipt] = store.run(enqueue([Request(NewJob("default", "t"))]), 0)
    first = started(store, worker, 0)
    assert store.run(maintain(), 10 * S - 1).returned == ()
    assert store.run(maintain(), 10 * S).returned == (receipt.id,)
    again = started(store, worker, 10 * S)
    assert (again.token, again.failures, again.crashes) == (2, 0, 1)  # type: ignore[attr-defined]
    late = store.run(settle([Succeeded(receipt.id, first.token)]), 11 * S)  # type: ignore[attr-defined]
    assert late == frozenset(), "the late result is fenced off"


def test_a_heartbeat_keeps_a_lease_and_can_t_revive_one() -> None:  # X5
    store = MemoryStore()
    worker = ask(store, Register("w", ("default",), 1, 10 * S), 0)
    assert ask(store, Beat(worker, 10 * S), 9 * S) is True  # type: ignore[arg-type]
    assert ask(store, Beat(worker, 10 * S), 19 * S) is False  # type: ignore[arg-type]


def test_a_job_that_keeps_killing_its_worker_ends_in_dead_letters() -> None:  # X5, B98
    store = MemoryStore()
    [receipt] = store.run(enqueue([Request(NewJob("default", "t"))]), 0)
    for start in range(4):
        worker = ask(store, Register("w", ("default",), 1, S), start * 10 * S)
        started(store, worker, start * 10 * S)  # type: ignore[arg-type]
        ask(store, Unregister(worker), start * 10 * S)  # type: ignore[arg-type]
        outcome = store.run(maintain(), start * 10 * S + 1)
    assert outcome.dead == (receipt.id,)
    record = ask(store, ReadJobs((receipt.id,)), 0)[receipt.id]  # type: ignore[index]
    assert (record.state, record.token, record.failures, record.crashes) == ("failed", 4, 0, 4)
    assert record.error.startswith("worker lost")


def test_exact_delays_then_the_dead_letter_with_the_real_error() -> None:  # X1, F119
    store = MemoryStore()
    store.run(enqueue([Request(NewJob("default", "t"))]), 0)
    retry, now_us, waits = Retry(4, delays=[0.5, 1.0]), 0, []
    while True:
        claimed = store.run(claim("default", 1, 1), now_us)
        if not claimed.started:
            break
        [job] = claimed.started
        store.run(settle([Failed(job.id, job.token, "boom", job.failures, retry)]), now_us)
        come_back_us = store.run(claim("default", 1, 1), now_us).come_back_us
        if come_back_us is None:
            break
        waits.append((come_back_us - now_us) / S)
        now_us = come_back_us
    assert waits == [0.5, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(("max_retries", "attempts"), [(0, 1), (2, 3)])
def test_the_jobs_own_max_retries_wins_and_zero_is_a_value(
    max_retries: int, attempts: int
) -> None:  # X1, B99
    store = MemoryStore()
    store.run(enqueue([Request(NewJob("default", "t", max_retries=max_retries))]), 0)
    count = 0
    for now_us in range(10):
        for job in store.run(claim("default", 1, 1), now_us).started:
            count += 1
            failed = Failed(job.id, job.token, "boom", job.failures, Retry(9, delays=[0]), job.max_retries)
            store.run(settle([failed]), now_us)
    assert count == attempts


def test_declaring_no_limit_lifts_a_stored_one() -> None:
    store = MemoryStore()
    store.run(declare([Declaration("queue_rate", "default", RateLimit("1/h"))]), 0)
    store.run(enqueue([Request(NewJob("default", "t"))] * 3), 0)
    assert len(store.run(claim("default", 3, 1), 0).started) == 1
    store.run(declare([Declaration("queue_rate", "default", None)]), 1)
    assert len(store.run(claim("default", 3, 1), 1).started) == 2


def test_a_changed_codel_keeps_its_state_under_the_same_law_only() -> None:
    store = MemoryStore()
    for policy, armed in [
        (CoDel("100ms", "1s"), True),
        (CoDel("100ms", "2s"), True),
        (CoDel("100ms", "2s", law="slough"), False),
    ]:
        store.run(declare([Declaration("queue_codel", "default", policy)]), 0)
        stored = store._gates["queue_codel", "default"]
        assert (stored.state is not None) is (armed and policy.interval_us != 1_000_000)
        if stored.state is None and armed:
            store.run(enqueue([Request(NewJob("default", "t"))] * 3), 0)
            store.run(claim("default", 1, 1), 500_000)


def test_the_same_instant_twice_still_lets_the_newer_declaration_win() -> None:
    store = MemoryStore()
    for rate in ("1/s", "2/s"):
        store.run(declare([Declaration("task_rate", "t", RateLimit(rate))]), 0)
    params = store._gates["task_rate", "t"].params
    assert params is not None
    assert params["rate"] == "2/s"
