"""Enqueue: coalesce (C1-C7) and debounce (B1-B8) as the program decides them, alone and inside a batch."""

from __future__ import annotations

from typing import Any

import pytest

from flowq.memory import MemoryStore
from flowq.policy import Coalesce, Debounce, Flow, Retry
from flowq.programs import Failed, Receipt, Request, Succeeded, claim, enqueue, key_hash, redrive, settle
from flowq.programs.commands import HeldKeys, Insert, Inserted, LockKeys, NewJob, Round, Slide
from flowq.task import TaskSpec

S = 1_000_000
COALESCED = TaskSpec("charge", flow=Flow(Coalesce()))
REPORT = TaskSpec("report", flow=Flow(Debounce("5m", "{user}", "30m")))
NEWEST = TaskSpec("report", flow=Flow(Debounce("5m", "{user}", "30m", replace_payload=True)))


def call(store: MemoryStore, spec: TaskSpec, key: str | None, at_us: int, **job: Any) -> Receipt:
    job_request = spec.keyed_request(key)
    [receipt] = store.run(enqueue([Request(job_request.job._replace(**job), job_request.debounce)]), at_us)
    return receipt


def start(store: MemoryStore, at_us: int) -> Any:
    return store.run(claim("default", 1, worker=1), at_us).started[0]


# --- commands ---


def test_a_batch_without_keys_is_one_round_that_only_inserts() -> None:
    program = enqueue([Request(NewJob("default", "plain")), Request(NewJob("default", "plain"))])
    assert next(program) == Round((Insert([NewJob("default", "plain")] * 2),), last=True)
    with pytest.raises(StopIteration) as stop:
        program.send([[Inserted(7, 1), Inserted(8, 1)]])
    assert [receipt.id for receipt in stop.value.value] == [7, 8]


def test_a_keyed_batch_locks_its_keys_sorted_and_once_each() -> None:  # I4
    keys = ["z", "a", "m", "a"]
    program = enqueue([COALESCED.keyed_request(key) for key in keys])
    [lock], last = next(program)
    hashes = sorted({key_hash("unique", "default", "charge", "", key) for key in keys})
    assert (lock, last) == (LockKeys(tuple(hashes), ()), False)


def test_a_coalesced_call_writes_nothing() -> None:  # C1
    request = COALESCED.keyed_request("k")
    program = enqueue([request])
    next(program)
    held = HeldKeys(5, {request.job.unique_hash: Inserted(3, 1)}, {})  # type: ignore[dict-item]
    assert program.send([held]) == Round((), last=True)


def test_a_merged_call_is_one_slide() -> None:  # B1
    store = MemoryStore()
    call(store, REPORT, "u", 0)
    program = enqueue([REPORT.keyed_request("u")])
    [lock], _ = next(program)
    held = store.run(_reply(lock), 60 * S)
    assert program.send([held]) == Round((Slide(1, 360 * S, 360 * S, 2, None),), last=True)


def _reply(command: Any) -> Any:
    [reply] = yield Round((command,), True)
    return reply


# --- coalesce ---


def test_a_key_is_held_while_pending_running_and_in_back_off_and_freed_by_every_end() -> (
    None
):  # C1, C2, F60, F61
    store = MemoryStore()
    first = call(store, COALESCED, "k", 0)
    assert call(store, COALESCED, "k", 1)[:2] == (first.id, "coalesced")
    job = start(store, 2)
    assert call(store, COALESCED, "k", 3)[:2] == (first.id, "coalesced")
    store.run(settle([Failed(job.id, job.token, "boom", 0, Retry(1, delays=[10]))]), 4)
    assert call(store, COALESCED, "k", 5)[:2] == (first.id, "coalesced")
    job = start(store, 4 + 10 * S)
    store.run(settle([Failed(job.id, job.token, "boom", 1, Retry(1, delays=[10]))]), 20 * S)
    second = call(store, COALESCED, "k", 20 * S)
    assert second.outcome == "accepted"
    job = start(store, 20 * S)
    store.run(settle([Succeeded(job.id, job.token)]), 21 * S)
    assert call(store, COALESCED, "k", 21 * S).outcome == "accepted"


def test_a_call_at_the_completion_instant_makes_a_new_job() -> None:  # SimPy tie rule: completions come first
    store = MemoryStore()
    call(store, COALESCED, "k", 0)
    job = start(store, 0)
    store.run(settle([Succeeded(job.id, job.token)]), S)
    assert call(store, COALESCED, "k", S).outcome == "accepted"


def test_delay_priority_and_payload_of_a_coalesced_call_are_ignored() -> None:  # C1, F65
    store = MemoryStore()
    first = call(store, COALESCED, "k", 0, delay_us=60 * S)
    again = call(store, COALESCED, "k", 1, delay_us=0, priority=9)
    assert again == Receipt(first.id, again.outcome, 60 * S)


def test_two_tasks_or_two_namespaces_never_share_a_key() -> None:  # C3, T8, F66, F67, F83
    hashes = {
        key_hash(space, namespace, task, scope, "k")
        for space in ("unique", "keyed")
        for namespace in ("a", "b")
        for task in ("t", "u")
        for scope in ("", "s")
    }
    assert len(hashes) == 16
    assert key_hash("unique", "a", "bc", "", "d") != key_hash("unique", "ab", "c", "", "d")


def test_a_batch_decides_each_item_in_order_inside_itself_too() -> None:  # C6, F70, F71, B15
    store = MemoryStore()
    requests = [COALESCED.keyed_request(key) for key in ("1", "1", "2")]
    x, x_again, y = store.run(enqueue(requests), 0)
    assert [receipt.outcome for receipt in (x, x_again, y)] == ["accepted", "coalesced", "accepted"]
    assert x_again.id == x.id != y.id
    assert [receipt[:2] for receipt in store.run(enqueue(requests), 1)] == [
        (x.id, "coalesced"), (x.id, "coalesced"), (y.id, "coalesced"),
    ]  # fmt: skip


# --- debounce ---


def test_each_call_slides_the_deadline_up_to_the_ceiling() -> None:  # B1, F76, F77
    store = MemoryStore()
    run_at = [call(store, REPORT, "u", minute * 60 * S).run_at_us // (60 * S) for minute in (0, 2, 4)]
    assert run_at == [5, 7, 9]
    last = [call(store, REPORT, "v", minute * 60 * S).run_at_us // (60 * S) for minute in range(29)][-1]
    assert last == 30


def test_a_running_job_is_not_touched_a_new_window_opens_behind_it() -> None:  # B2, F84, B34
    store = MemoryStore()
    first = call(store, REPORT, "u", 0)
    start(store, 300 * S)
    second = call(store, REPORT, "u", 301 * S)
    assert (second.outcome, second.run_at_us, second.id != first.id) == ("accepted", 601 * S, True)


def test_a_job_that_waits_for_its_retry_is_not_a_merge_target() -> None:  # B2, F85, F86
    store = MemoryStore()
    first = call(store, REPORT, "u", 0)
    job = start(store, 300 * S)
    store.run(settle([Failed(job.id, job.token, "boom", 0, Retry(1, delays=["1h"]))]), 301 * S)
    second = call(store, REPORT, "u", 302 * S)
    assert second.id != first.id
    assert start(store, 602 * S).id == second.id


def test_an_overdue_window_stays_one_row_and_its_deadline_may_lie_in_the_past() -> None:  # B3, B37
    spec = TaskSpec("t", flow=Flow(Debounce("5s", "{k}", "30s", replace_payload=True)))
    store = MemoryStore()
    first = call(store, spec, "k", 0, payload='["old",{}]')
    late = call(store, spec, "k", 50 * S, payload='["new",{}]')
    assert (late.id, late.outcome, late.run_at_us, late.hits) == (first.id, "merged", 30 * S, 2)
    assert start(store, 60 * S).payload == '["new",{}]'


@pytest.mark.parametrize(("spec", "payload"), [(REPORT, "first"), (NEWEST, "third")])
def test_the_opening_payload_runs_or_the_newest(spec: TaskSpec, payload: str) -> None:  # B5, F80
    store = MemoryStore()
    for index, text in enumerate(("first", "second", "third")):
        call(store, spec, "u", index, payload=text)
    assert start(store, 3600 * S).payload == payload


@pytest.mark.parametrize(("spec", "payload"), [(REPORT, "first"), (NEWEST, "third")])
def test_a_batch_merges_inside_itself(spec: TaskSpec, payload: str) -> None:  # C6, B7
    store = MemoryStore()
    calls = [spec.keyed_request("u") for _ in range(3)]
    batch = [
        Request(request.job._replace(payload=text), request.debounce)
        for request, text in zip(calls, ("first", "second", "third"), strict=True)
    ]
    receipts = store.run(enqueue(batch), 0)
    assert [(r.outcome, r.hits) for r in receipts] == [("accepted", 1), ("merged", 2), ("merged", 3)]
    assert len({r.id for r in receipts}) == 1
    assert start(store, 3600 * S).payload == payload


def test_a_shed_job_that_is_retried_by_hand_is_fresh_and_exempt() -> None:  # D5
    from flowq.policy import RateLimit

    spec = TaskSpec("sample", flow=Flow(RateLimit("1/h", on_excess="drop")))
    store = MemoryStore()
    from flowq.programs import declare

    store.run(declare(spec.declarations(), lines=[spec.line]), 0)
    ran, shed = (call(store, spec, None, 0) for _ in range(2))
    claimed = store.run(claim("default", 2, worker=1), 0)
    assert ([job.id for job in claimed.started], [job.id for job in claimed.sheds]) == ([ran.id], [shed.id])
    renewed = store.run(redrive([shed.id, 999]), 1)
    assert list(renewed) == [shed.id]
    again = store.run(claim("default", 2, worker=1), 1)
    assert (again.started, again.sheds, again.come_back_us) == ([], [], 3600 * S)
    assert store.run(claim("default", 2, worker=1), 3600 * S).started[0].id == renewed[shed.id]
