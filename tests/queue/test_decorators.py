"""The decorator forms, over PostgreSQL: coalesce, debounce and rate limit as the service writes them.

Cases are cited as F60 and so on. What depends on the passing of minutes is held by the policy's tests; here the
same formulas are read off the jobs that the store keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from flowq import (
    ConfigurationError,
    JobShed,
    JobState,
    KeyTemplateError,
    Outcome,
    PayloadError,
    Queue,
)
from worker.working import drain, eventually, working

Declare = Callable[..., Any]


def rows(db: psycopg.Connection, queue: Queue) -> int:
    row = db.execute("select count(*) from flowq.job where namespace = %s", (queue.namespace,)).fetchone()
    assert row is not None
    return int(row[0])


def test_the_forms_of_the_service(queue: Queue) -> None:
    @queue.task(rate_limit="10/s", on_excess="drop")
    def record_sample(metric: str, value: float) -> None: ...

    @queue.task(idempotent=True)
    def charge(customer_id: int, cents: int) -> str:
        return f"{customer_id}: {cents}"

    @queue.task(debounce="5m", debounce_key="report:{user_id}", debounce_max_wait="30m")
    def build_report(user_id: str) -> None: ...

    first, second = charge.delay(42, 1000), charge.delay(42, 1000)
    assert second.id == first.id
    assert (first.outcome, second.outcome) == (Outcome.ACCEPTED, Outcome.COALESCED)

    queue.set_queue_codel("default", target="500ms", interval="5s")

    sample = record_sample.delay("temperature", 21.5)
    report = build_report.delay("ann")
    again = build_report.delay("ann")
    assert (again.id, again.outcome, again.hits) == (report.id, Outcome.MERGED, 2)
    assert timedelta(minutes=4, seconds=30) < again.run_at - datetime.now(UTC) <= timedelta(minutes=5)

    with working(queue):
        assert first.result("20s") == "42: 1000"
        assert sample.result("20s") is None
    assert report.state() is JobState.PENDING
    assert record_sample("direct", 1.0) is None, "a call runs it here and now"


class TestCoalesce:
    def declared(self, queue: Queue, **options: Any) -> Any:
        @queue.task(**options)
        def charge(customer: int, cents: int = 2) -> int:
            return customer

        return charge

    def test_while_it_lives_a_call_returns_it(self, queue: Queue) -> None:
        """F60: pending, running, and then a new one."""
        gate, started = threading.Event(), threading.Event()

        @queue.task(idempotent=True)
        def charge(customer: int) -> None:
            started.set()
            gate.wait(20)

        first = charge.delay(1)
        assert charge.delay(1).id == first.id
        with working(queue):
            assert started.wait(20)
            assert charge.delay(1).id == first.id
            gate.set()
            first.result("20s")
            assert charge.delay(1).id != first.id

    def test_in_back_off_it_lives_and_dead_it_does_not(self, queue: Queue) -> None:
        """F61."""

        @queue.task(idempotent=True, max_retries=1, retry_delays=["1h"])
        def fails(n: int) -> None:
            raise ValueError("no")

        first = fails.delay(1)
        with working(queue):
            eventually(lambda: queue.job(first.id).failures == 1)
            assert fails.delay(1).id == first.id
            dead = fails.apply_async((2,), max_retries=0)
            eventually(lambda: dead.state() is JobState.FAILED)
            assert fails.delay(2).id != dead.id

    def test_the_derived_key_is_of_the_call_not_of_its_writing(self, queue: Queue) -> None:
        """F62, F63, F64: positions, keywords, defaults, order of members, 3 and 3.0, tuple and list."""
        charge = self.declared(queue, idempotent=True)
        calls = [
            charge.delay(1),
            charge.delay(customer=1),
            charge.delay(1, 2),
            charge.delay(cents=2, customer=1),
        ]
        assert len({job.id for job in calls}) == 1

        @queue.task(idempotent=True)
        def any_value(value: Any) -> None: ...

        same: list[tuple[Any, Any]] = [({"x": 1, "y": 2}, {"y": 2, "x": 1}), (3, 3.0), ((1,), [1])]
        for one, other in same:
            assert any_value.delay(one).id == any_value.delay(other).id, (one, other)
        assert any_value.delay(3).id != any_value.delay("3").id

    def test_nothing_of_the_first_moves(self, queue: Queue) -> None:
        """F65."""
        charge = self.declared(queue, idempotent=True)
        first = charge.apply_async((1,), priority=3, delay="1h", metadata={"n": 1})
        second = charge.apply_async((1,), priority=9, metadata={"n": 2})
        assert (second.id, second.run_at) == (first.id, first.run_at)
        assert queue.job(first.id).metadata == '{"n":1}'

    def test_two_tasks_and_two_namespaces_never_share_a_key(self, queue: Queue, dsn: str) -> None:
        """F66, F67."""

        @queue.task(name="a")
        def one() -> None: ...

        @queue.task(name="b")
        def two() -> None: ...

        with Queue(dsn, namespace=f"{queue.namespace}-other") as other:
            jobs = [
                one.apply_async(unique_key="U"),
                two.apply_async(unique_key="U"),
                other.enqueue("a", unique_key="U"),
                one.apply_async(unique_key="U"),
            ]
        ids = [job.id for job in jobs]
        assert len(set(ids)) == 3
        assert ids[3] == ids[0]

    def test_which_key_holds(self, queue: Queue) -> None:
        """F68: an explicit key wins over derivation, False turns derivation off."""
        charge = self.declared(queue, idempotent=True)
        derived = charge.delay(1)
        explicit = charge.apply_async((1,), unique_key="mine")
        assert explicit.id != derived.id
        assert charge.apply_async((2,), unique_key="mine").id == explicit.id
        assert charge.apply_async((9,), unique_key="mine", idempotent=False).id == explicit.id
        assert charge.apply_async((1,), idempotent=False).id not in (derived.id, explicit.id)

    @pytest.mark.parametrize(
        ("key", "message"),
        [("", "must not be empty"), ("a\x00", "NUL"), ("x" * 513, "<= 512 bytes"), ("\ud800", "surrogate")],
        ids=["empty", "NUL", "long", "surrogate"],
    )
    def test_a_key_that_cannot_be_one_is_refused(
        self, queue: Queue, db: psycopg.Connection, key: str, message: str
    ) -> None:
        """F69, rule T7."""
        charge = self.declared(queue)
        with pytest.raises(ConfigurationError, match=message):
            charge.apply_async((1,), unique_key=key)
        assert rows(db, queue) == 0

    def test_a_batch_decides_each_item_in_order(self, queue: Queue, db: psycopg.Connection) -> None:
        """F70, F71: repeats inside the batch and against a live job."""
        self.declared(queue, idempotent=True)
        x, y, z = queue.enqueue_many([{"task": "charge", "args": [n]} for n in (1, 1, 2)])
        assert (x.id == y.id, z.id == x.id) == (True, False)
        assert [x.outcome, y.outcome, z.outcome] == ["accepted", "coalesced", "accepted"]
        again = queue.enqueue_many([{"task": "charge", "args": [n]} for n in (3, 2, 3)])
        assert again[1].id == z.id
        assert again[0].id == again[2].id
        assert rows(db, queue) == 3

    def test_many_callers_at_once_make_one_job(self, queue: Queue, db: psycopg.Connection) -> None:
        """F75, rule C7."""
        charge = self.declared(queue, idempotent=True)
        charge.delay(0)
        with ThreadPoolExecutor(16) as threads:
            jobs = list(threads.map(lambda n: charge.delay(1 + n // 32), range(128)))
        assert len({job.id for job in jobs}) == 4
        assert sum(job.outcome == "accepted" for job in jobs) == 4
        assert rows(db, queue) == 5

    def test_a_key_template(self, queue: Queue) -> None:
        @queue.task(unique_key="customer:{customer}")
        def charge(customer: int, cents: int) -> None: ...

        first = charge.delay(1, 100)
        assert charge.delay(1, 999).id == first.id
        assert charge.delay(2, 100).id != first.id

    @pytest.mark.parametrize(
        "value",
        [float("nan"), float("inf"), object(), {1}, b"x"],
        ids=["nan", "inf", "object", "set", "bytes"],
    )
    def test_arguments_that_json_cannot_carry_are_refused(
        self, queue: Queue, db: psycopg.Connection, value: Any
    ) -> None:
        charge = self.declared(queue, idempotent=True)
        with pytest.raises((PayloadError, ConfigurationError)):
            charge.delay(value)
        assert rows(db, queue) == 0


class TestDebounce:
    def declared(self, queue: Queue, **options: Any) -> Any:
        values = {"debounce": "5m", "debounce_key": "r:{user}", "debounce_max_wait": "30m", **options}

        @queue.task(**values)
        def report(user: Any, page: int = 0) -> None: ...

        return report

    def test_each_call_moves_the_deadline_up_to_the_ceiling(
        self, queue: Queue, db: psycopg.Connection
    ) -> None:
        """F76, F77, F79: min(now + window, first seen + max wait)."""
        slides = self.declared(queue)
        jobs = [slides.delay("ann") for _ in range(4)]
        assert len({job.id for job in jobs}) == 1
        deadlines = [job.window_ends_at for job in jobs]
        assert deadlines == sorted(deadlines)
        assert deadlines[0] < deadlines[-1]
        assert [job.hits for job in jobs] == [1, 2, 3, 4]

        @queue.task(debounce="30m", debounce_key="s:{user}", debounce_max_wait="30m")
        def stands(user: str) -> None: ...

        held = [stands.delay("ann") for _ in range(3)]
        assert len({job.window_ends_at for job in held}) == 1, "the first deadline is the ceiling"
        assert rows(db, queue) == 2

    @pytest.mark.parametrize(("replace", "page"), [(False, 1), (True, 3)])
    def test_which_payload_runs(self, queue: Queue, replace: bool, page: int) -> None:
        """F80."""
        runs = []

        @queue.task(
            debounce="50ms", debounce_key="r:{user}", debounce_max_wait="1h", debounce_replace_payload=replace
        )
        def report(user: str, page: int) -> None:
            runs.append(page)

        for n in (1, 2, 3):
            report.delay("ann", n)
        drain(queue)
        assert runs == [page]

    def test_the_rest_belongs_to_the_opening_call(self, queue: Queue) -> None:
        """F81."""
        report = self.declared(queue)
        first = report.apply_async(("ann",), metadata={"n": 1}, priority=1)
        second = report.apply_async(("ann",), metadata={"n": 2}, priority=9, queue="other", max_retries=0)
        record = queue.job(first.id)
        assert second.id == first.id
        assert (record.queue, record.metadata) == ("default", '{"n":1}')

    def test_a_shorter_window_may_move_the_deadline_earlier(self, queue: Queue) -> None:
        """F82, rule B1: the formula is the whole rule."""
        report = self.declared(queue)
        first = report.delay("ann")
        second = report.apply_async(
            ("ann",), debounce="100ms", debounce_key="r:{user}", debounce_max_wait="1m"
        )
        assert second.id == first.id
        assert second.run_at < first.run_at - timedelta(minutes=4)

    def test_two_tasks_with_one_template_have_two_windows(self, queue: Queue) -> None:
        """F83."""
        options = {"debounce": "5m", "debounce_key": "k:{x}", "debounce_max_wait": "30m"}

        @queue.task(name="a", **options)
        def one(x: int) -> None: ...

        @queue.task(name="b", **options)
        def two(x: int) -> None: ...

        assert one.delay(1).id != two.delay(1).id

    def test_a_running_or_failed_attempt_is_no_target(self, queue: Queue) -> None:
        """F84, F85, F86: a new window opens behind it, and the back-off stays."""
        started = threading.Event()
        gate = threading.Event()

        @queue.task(
            debounce="1ms",
            debounce_key="r:{user}",
            debounce_max_wait="1ms",
            max_retries=1,
            retry_delays=["1h"],
        )
        def report(user: str, page: int) -> None:
            started.set()
            gate.wait(20)
            raise ValueError("no")

        first = report.delay("ann", 1)
        with working(queue, concurrency=1):
            assert started.wait(20)
            while_running = report.apply_async(("ann", 2), debounce="1h", **self.rest())
            assert (while_running.id != first.id, while_running.outcome) == (True, "accepted")
            gate.set()
            eventually(lambda: queue.job(first.id).failures == 1)
        retry_at = queue.job(first.id).run_at_us
        merged = report.apply_async(("ann", 3), debounce="1h", **self.rest())
        assert merged.id == while_running.id
        assert queue.job(first.id).run_at_us == retry_at

    @staticmethod
    def rest() -> dict[str, str]:
        return {"debounce_key": "r:{user}", "debounce_max_wait": "2h"}

    def test_racing_calls_make_one_row(self, queue: Queue, db: psycopg.Connection) -> None:
        """F87."""
        report = self.declared(queue)
        with ThreadPoolExecutor(8) as threads:
            for race in range(20):
                jobs = list(threads.map(lambda _, key=f"user {race}": report.delay(key), range(8)))
                assert len({job.id for job in jobs}) == 1
                assert sorted(job.hits for job in jobs) == list(range(1, 9))
        assert rows(db, queue) == 20

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"debounce": "5m", "debounce_key": "k"}, "starves the job while enqueues keep arriving"),
            ({"debounce": "5m", "debounce_max_wait": "30m"}, "must have a key"),
            ({"debounce_key": "k"}, "debounce"),
            ({"debounce_max_wait": "30m"}, "debounce"),
            ({"debounce_replace_payload": True}, "debounce"),
            ({"debounce": "5m", "debounce_key": "k", "debounce_max_wait": "1m"}, "max_wait"),
            ({"debounce": "5m", "debounce_key": "", "debounce_max_wait": "30m"}, "key must not be empty"),
        ],
    )
    def test_an_incomplete_set_is_refused_when_declared(
        self, queue: Queue, options: dict[str, Any], message: str
    ) -> None:
        """F88."""
        with pytest.raises(ConfigurationError, match=message):

            @queue.task(**options)
            def report() -> None: ...

    @pytest.mark.parametrize(
        "window", ["5", "", "-3s", "5 minutes", 0, -1, "0.0001ms", float("inf"), float("nan"), "366d"]
    )
    def test_a_value_that_is_no_duration_is_refused(self, queue: Queue, window: Any) -> None:
        """F89; a window of 0.4 ms is one here, because instants are microseconds."""
        with pytest.raises(ConfigurationError, match="debounce"):
            self.declared(queue, debounce=window)

    @pytest.mark.parametrize("window", [True, [1]])
    def test_a_type_that_is_no_duration_is_refused(self, queue: Queue, window: Any) -> None:
        """F89."""
        with pytest.raises(TypeError, match="debounce"):
            self.declared(queue, debounce=window)

    @pytest.mark.parametrize(
        ("window", "us"), [("2.5m", 150_000_000), ("  30M ", 1_800_000_000), (5, 5_000_000)]
    )
    def test_durations_are_read_as_written(self, queue: Queue, window: Any, us: int) -> None:
        """F90."""
        report = self.declared(queue, debounce=window)
        assert report.spec.flow.debounce.window_us == us

    def test_what_cannot_go_with_it_is_refused(self, queue: Queue, db: psycopg.Connection) -> None:
        """F91, rule B7; in a batch it is allowed."""
        with pytest.raises(ConfigurationError):
            self.declared(queue, idempotent=True)
        report = self.declared(queue)
        for options in (
            {"unique_key": "U"},
            {"idempotent": True},
            {"delay": 0},
            {"run_at": datetime.now(UTC)},
        ):
            with pytest.raises(ConfigurationError, match="debounce"):
                report.apply_async(("ann",), **options)
        assert rows(db, queue) == 0
        batch = queue.enqueue_many([{"task": "report", "args": [user]} for user in ("ann", "bob", "ann")])
        assert [job.outcome for job in batch] == ["accepted", "accepted", "merged"]
        assert batch[0].id == batch[2].id

    @pytest.mark.parametrize("value", ["", None, "  ", [], {}, [1]], ids=repr)
    def test_a_placeholder_that_resolves_to_nothing_is_refused(
        self, queue: Queue, db: psycopg.Connection, value: Any
    ) -> None:
        """F92, F93, F94, F95, rule K2."""
        report = self.declared(queue)
        with pytest.raises(KeyTemplateError, match="user"):
            report.delay(value)
        assert rows(db, queue) == 0

    def test_a_position_counts_whichever_way_it_was_passed(self, queue: Queue) -> None:
        """F96."""
        report = self.declared(queue, debounce_key="r:{0}")
        assert report.delay("ann").id == report.delay(user="ann").id

    def test_one_step_into_an_argument(self, queue: Queue) -> None:
        """F97."""

        @queue.task(debounce="5m", debounce_key="{o[id]}:{z}", debounce_max_wait="30m")
        def report(o: dict[str, int], **kw: str) -> None: ...

        first = report.delay({"id": 1}, z="a")
        assert report.delay({"id": 1, "n": 2}, z="a").id == first.id
        assert report.delay({"id": 1}, z="b").id != first.id
        for whole in ("{kw}", "{args}"):
            with pytest.raises(KeyTemplateError):

                @queue.task(name="whole", debounce="5m", debounce_key=whole, debounce_max_wait="30m")
                def takes(*args: int, **kw: str) -> None: ...

    @pytest.mark.parametrize("template", ["r:{u", "r:{nobody}", "r:{user!r}", "r:{user:.0}", "r:{user.a.b}"])
    def test_a_template_that_cannot_work_is_refused_when_declared(self, queue: Queue, template: str) -> None:
        """F93, F98, F99, rule K1."""
        with pytest.raises(KeyTemplateError):
            self.declared(queue, debounce_key=template)

    def test_replace_payload_alone_keeps_the_window(self, queue: Queue) -> None:
        """F100."""
        report = self.declared(queue)
        first = report.delay("ann", 1)
        second = report.apply_async(("ann", 2), debounce_replace_payload=True)
        assert second.id == first.id
        assert queue.job(first.id).payload == '[["ann",2],{}]'

    def test_a_call_defines_the_whole_set_or_none(self, queue: Queue) -> None:
        """F101, rule B6."""
        report = self.declared(queue)
        with pytest.raises(ConfigurationError):
            report.apply_async(("ann",), debounce="1s")
        off = report.apply_async(("ann",), debounce=False)
        assert (off.outcome, off.window_ends_at) == ("accepted", None)
        assert report.apply_async(("ann",), debounce=False).id != off.id

    def test_a_dead_letter_that_is_retried_runs_as_a_job_of_its_own(self, queue: Queue) -> None:
        """F105."""
        runs = []

        @queue.task(debounce="1ms", debounce_key="r:{user}", debounce_max_wait="1ms", max_retries=0)
        def report(user: str) -> None:
            runs.append(user)
            if len(runs) == 1:
                raise ValueError("no")

        first = report.delay("ann")
        drain(queue)
        renewed = queue.retry_dead([first.id])[first.id]
        drain(queue)
        assert queue.job(renewed).state == "succeeded"
        assert runs == ["ann", "ann"]

    def test_no_job_is_due_before_it_was_made(self, queue: Queue, db: psycopg.Connection) -> None:
        """F106."""

        @queue.task()
        def note() -> None: ...

        queue.enqueue_many([{"task": "note"}] * 20)
        for _ in range(20):
            note.delay()
        sql = "select count(*) from flowq.job where namespace = %s and enqueued_us > eligible_us"
        assert db.execute(sql, (queue.namespace,)).fetchone() == (0,)


class TestDrop:
    def test_excess_is_dead_lettered_as_the_rule_says(self, queue: Queue, db: psycopg.Connection) -> None:
        """F25, F26, F38, rule D2."""

        @queue.task(rate_limit="2/h", on_excess="drop")
        def sample(n: int) -> int:
            return n

        jobs = [sample.apply_async((n,), metadata={"mine": n}) for n in range(5)]
        drain(queue)
        assert [job.result("5s") for job in jobs[:2]] == [0, 1]
        letters = queue.dead_letters()
        assert [letter.id for letter in letters] == [job.id for job in reversed(jobs[2:])]
        for letter in letters:
            assert letter.error == (
                "rate_limit: task 'sample' is over its dispatch rate limit, and its on_excess is drop"
            )
            assert letter.metadata == {"shed": "rate_limit"}
            assert (letter.reason, letter.retry_count, letter.started_at) == ("rate_limit", 0, None)
            record = queue.job(letter.id)
            assert (record.state, record.started_us, record.metadata) == (
                "shed",
                None,
                f'{{"mine":{letter.args[0]}}}',
            )

    def test_a_waiter_is_told_that_it_was_shed(self, queue: Queue) -> None:
        """F31, rule D3."""

        @queue.task(rate_limit="1/h", on_excess="drop")
        def sample() -> None: ...

        sample.delay()
        dropped = sample.delay()
        drain(queue)
        with pytest.raises(JobShed, match=r"rate_limit: task 'sample'") as raised:
            dropped.result("5s")
        assert raised.value.reason == "rate_limit"

    def test_the_queues_limit_sheds_jobs_of_drop_tasks_and_defers_the_rest(self, queue: Queue) -> None:
        """F29, rule D1."""
        queue.set_queue_rate_limit("narrow", "2/h")

        @queue.task(queue="narrow", rate_limit="1000/s", on_excess="drop")
        def drops(n: int) -> None: ...

        @queue.task(queue="narrow")
        def waits(n: int) -> None: ...

        dropping = [drops.delay(n) for n in range(4)]
        waiting = [waits.delay(n) for n in range(2)]
        with working(queue, "narrow"):
            eventually(lambda: len(queue.dead_letters()) == 2)
            eventually(lambda: all(job.state() is not JobState.RUNNING for job in dropping))
        states = [job.state().value for job in dropping]
        assert states == ["succeeded", "succeeded", "shed", "shed"]
        assert [job.state() for job in waiting] == [JobState.PENDING, JobState.PENDING]
        assert {letter.error for letter in queue.dead_letters()} == {
            "rate_limit: queue 'narrow' is over its dispatch rate limit, and its on_excess is drop"
        }

    def test_a_manual_retry_of_a_shed_job_waits_its_turn(self, queue: Queue) -> None:
        """F31, rule D5: it is not shed again, though its bucket is empty."""

        @queue.task(rate_limit="5/s", burst=1, on_excess="drop")
        def sample(n: int) -> int:
            return n

        first, second = sample.delay(1), sample.delay(2)
        drain(queue)
        assert (first.state(), second.state()) == (JobState.SUCCEEDED, JobState.SHED)
        renewed = queue.retry_dead([second.id])[second.id]
        drain(queue)
        assert queue.job(renewed).state == "succeeded"
        assert queue.job(renewed).result == "2"
        assert [letter.id for letter in queue.dead_letters()] == []
        assert queue.retry_dead([second.id]) == {}, "its letter is gone"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"on_excess": "drop"}, "rate_limit"),
            ({"rate_limit": "1/s", "on_excess": "DROP"}, "on_excess must be 'defer' or 'drop'"),
            ({"rate_limit": "1/s", "on_excess": "shed"}, "on_excess must be"),
            ({"rate_limit": "0/s"}, "rate"),
            ({"rate_limit": "10"}, "rate"),
            ({"rate_limit": "100/mn"}, "rate"),
            ({"burst": 3}, "rate_limit"),
        ],
    )
    def test_what_cannot_work_is_refused_when_declared(
        self, queue: Queue, options: dict[str, Any], message: str
    ) -> None:
        """F20, F21, F36, F37."""
        with pytest.raises(ConfigurationError, match=message):

            @queue.task(**options)
            def sample() -> None: ...


class TestCoDel:
    def test_a_standing_queue_is_shed_and_says_so(self, queue: Queue) -> None:
        """Rule O6: error, metadata, waiter."""
        queue.set_queue_codel("default", target="5ms", interval="20ms")
        pause = threading.Event()

        @queue.task()
        def slow(n: int) -> None:
            pause.wait(0.01)

        jobs = queue.enqueue_many([{"task": "slow", "args": [n]} for n in range(120)])
        drain(queue, concurrency=1)
        letters = queue.dead_letters(1_000)
        assert letters
        assert {letter.reason for letter in letters} == {"codel"}
        assert all(letter.metadata == {"codel": True} for letter in letters)
        assert all(letter.error.startswith("codel: sojourn ") for letter in letters)
        assert all("is above target 5ms" in letter.error for letter in letters)
        assert all(letter.started_at is None for letter in letters)
        with pytest.raises(JobShed) as raised:
            next(job for job in jobs if job.id == letters[0].id).result("5s")
        assert raised.value.reason == "codel"
        assert len(letters) + sum(job.state() == "succeeded" for job in jobs) == 120

    @pytest.mark.parametrize("options", [{"target": 0, "interval": "1s"}, {"target": "1s", "interval": -1}])
    def test_what_cannot_work_is_refused(self, queue: Queue, options: dict[str, Any]) -> None:
        """F56."""
        with pytest.raises(ConfigurationError):
            queue.set_queue_codel("default", **options)
