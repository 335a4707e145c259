"""A call becomes a request: the decorator's keywords (B4, C5, D1, T6) met by a call's options (B6, B7, R7, T5, T7)."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowq.declaration import Registry, flow_of
from flowq.errors import ConfigurationError, KeyTemplateError, PayloadError
from flowq.policy import Coalesce, CoDel, Debounce, Flow, RateLimit, Retry
from flowq.programs import Declaration, Request
from flowq.task import CallOptions, TaskSpec


def build_report(user_id: str, full: bool = False, **more: Any) -> None: ...


SIGNATURE = inspect.signature(build_report)
DEBOUNCED = TaskSpec("report", flow=Flow(Debounce("5m", "report:{user_id}", "30m")), signature=SIGNATURE)
IDEMPOTENT = TaskSpec("charge", flow=Flow(Coalesce()), signature=SIGNATURE)
PLAIN = TaskSpec("plain", signature=SIGNATURE)
LIMITED = TaskSpec("limited", flow=Flow(RateLimit("10/s", burst=3)), signature=SIGNATURE)


def request(spec: TaskSpec, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> Request:
    return spec.request(args, kwargs, CallOptions(**(options or {})))


# --- the decorator's keywords ---


@pytest.mark.parametrize(
    ("keywords", "flow"),
    [
        ({}, Flow()),
        ({"rate_limit": "10/s", "on_excess": "drop"}, Flow(RateLimit("10/s", on_excess="drop"))),
        ({"rate_limit": "10/s", "burst": 1}, Flow(RateLimit("10/s", burst=1))),
        ({"rate_limit": RateLimit("10/s", burst=2)}, Flow(RateLimit("10/s", burst=2))),
        ({"idempotent": True}, Flow(Coalesce())),
        ({"unique_key": "{user_id}"}, Flow(Coalesce("{user_id}"))),
        (
            {"debounce": "5m", "debounce_key": "{user_id}", "debounce_max_wait": timedelta(minutes=30)},
            Flow(Debounce("5m", "{user_id}", "30m")),
        ),
        ({"max_retries": 0}, Flow(Retry(0))),
        ({"retry_delays": [0.5, 1.0], "max_retries": 4}, Flow(Retry(4, delays=[0.5, 1.0]))),
    ],
)
def test_keywords_are_shorthand_for_a_flow(keywords: dict[str, Any], flow: Flow) -> None:
    assert flow_of(**keywords) == flow


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"on_excess": "drop"}, "on_excess needs a rate_limit"),  # D1, F36
        ({"burst": 3}, "burst needs a rate_limit"),
        ({"rate_limit": "10/s", "on_excess": "DROP"}, "on_excess must be"),  # F37
        ({"rate_limit": "100/mn"}, "rate_limit must be"),  # T6, F20
        ({"rate_limit": "0/s"}, "rate_limit must be > 0"),
        ({"debounce": "5m", "debounce_key": "k"}, "an unbounded debounce starves the job"),  # B4
        ({"debounce": "5m", "debounce_max_wait": "30m"}, "debounce must have a key"),
        ({"debounce_key": "k"}, "debounce must have a max_wait"),  # F88
        ({"debounce_max_wait": "30m"}, "debounce must have a key"),
        ({"debounce_replace_payload": True}, "debounce must have a max_wait"),
        ({"debounce": "5m", "debounce_key": "k", "debounce_max_wait": "1m"}, "max_wait must be >= window"),
        ({"debounce": "5m", "debounce_key": "{nope}", "debounce_max_wait": "9m"}, "nope"),  # K2, F99
        ({"debounce": "5m", "debounce_key": "r:{u", "debounce_max_wait": "9m"}, "debounce key"),  # F98
        (
            {"debounce": "5m", "debounce_key": "k", "debounce_max_wait": "9m", "idempotent": True},
            "Coalesce and Debounce",
        ),  # B7
        ({"unique_key": ""}, "coalesce key must not be empty"),  # C5, F69
        ({"max_retries": -1}, "max_retries must be >= 0"),
        ({"flow": Flow(), "rate_limit": "10/s"}, "flow is all of a task's policies"),
        ({"flow": Flow(CoDel("1s", "10s"))}, "CoDel belongs to a queue"),
        ({"priority": 2**31}, "priority must be"),
        ({"name": ""}, "task name must not be empty"),
    ],
)
def test_what_can_t_work_is_refused_when_declared(keywords: dict[str, Any], message: str) -> None:
    given = {"name": None, "queue": "default", "priority": 0, "flow": None} | keywords
    own = {key: given.pop(key) for key in ("name", "queue", "priority", "flow")}
    registry = Registry("default")

    def task(user: str) -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        registry.add(task, own["name"], own["queue"], own["priority"], own["flow"], given)
    assert not registry.tasks


def test_an_unknown_keyword_is_named() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'rate_limt'"):
        Registry("default").add(build_report, None, "default", 0, None, {"rate_limt": "10/s"})


def test_a_name_belongs_to_one_function() -> None:
    registry = Registry("default")
    registry.add(build_report, None, "default", 0, None, {})
    registry.add(build_report, None, "default", 0, None, {})
    with pytest.raises(ConfigurationError, match=r"task name 'build_report' is taken by .*build_report"):
        registry.add(lambda: None, "build_report", "default", 0, None, {})


def test_a_queue_is_simulated_as_it_is_declared() -> None:
    registry = Registry("default")
    registry.add(build_report, None, "default", 0, None, {"rate_limit": "10/s"})
    registry.set_queue("queue_codel", "default", CoDel("500ms", "5s"))
    [spec] = registry.specs()
    assert spec.flow == Flow(RateLimit("10/s"), CoDel("500ms", "5s"))
    assert spec.declarations() == (
        Declaration("task_rate", "build_report", RateLimit("10/s")),
        Declaration("task_concurrency", "build_report", None),
        Declaration("queue_codel", "default", CoDel("500ms", "5s")),
    )


# --- a call's options ---


def test_a_call_uses_the_declared_defaults() -> None:
    spec = TaskSpec("t", "mail", priority=7, signature=SIGNATURE)
    job = request(spec, "u").job
    assert (job.queue, job.priority, job.delay_us, job.cost, job.max_retries) == ("mail", 7, 0, 1, None)
    job = request(spec, "u", options={"queue": "q", "priority": 0, "max_retries": 0, "delay": 0}).job
    assert (job.queue, job.priority, job.max_retries) == ("q", 0, 0), "zero is a value (B99)"


def test_delay_and_run_at_say_when() -> None:  # T5, T7
    assert request(PLAIN, "u", options={"delay": "2.5m"}).job.delay_us == 150_000_000
    at = datetime(2026, 12, 1, 12, tzinfo=UTC)
    assert request(PLAIN, "u", options={"run_at": at}).job.run_at_us == int(at.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (PLAIN, {"delay": "1s", "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "can't both be given"),
        (PLAIN, {"run_at": datetime(2026, 1, 1)}, "run_at"),
        (PLAIN, {"delay": -1}, "delay must be"),
        (PLAIN, {"delay": "5"}, "delay must"),
        (LIMITED, {"cost": 4}, "cost must be <= burst 3"),  # R7
        (LIMITED, {"cost": 0}, "cost must be >= 1"),
        (PLAIN, {"cost": -5}, "cost must be >= 1"),
        (PLAIN, {"unique_key": ""}, "unique_key must not be empty"),  # C5
        (PLAIN, {"unique_key": "k" * 513}, "unique_key must be"),  # T7
        (PLAIN, {"unique_key": "a\x00b"}, "unique_key must"),
        (PLAIN, {"debounce": "1s"}, "debounce must have a max_wait"),  # B6, F101
        (PLAIN, {"debounce_replace_payload": True}, "debounce_replace_payload needs a window"),
        (DEBOUNCED, {"debounce": "1s"}, "debounce must have a max_wait"),
        (DEBOUNCED, {"debounce": False, "debounce_key": "k"}, "debounce=False switches debounce off"),
        (DEBOUNCED, {"unique_key": "k"}, "debounce and a unique key"),  # B7
        (DEBOUNCED, {"idempotent": True}, "debounce and a unique key"),
        (DEBOUNCED, {"delay": 0}, "debounce sets the run time itself"),  # F91
        (DEBOUNCED, {"run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "debounce sets the run time itself"),
        (
            IDEMPOTENT,
            {"debounce": "1s", "debounce_key": "k", "debounce_max_wait": "9s"},
            "debounce and a unique",
        ),
        (PLAIN, {"priority": 2**31}, "priority must be"),
        (PLAIN, {"queue": ""}, "queue must not be empty"),
        (PLAIN, {"max_retries": -1}, "max_retries must be"),
    ],
)
def test_options_that_can_t_work_are_refused_at_the_call(
    spec: TaskSpec, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        request(spec, "u", options=options)


@pytest.mark.parametrize("option", ["priority", "cost", "max_retries"])
def test_a_bool_is_no_number(option: str) -> None:
    with pytest.raises(TypeError, match=option):
        request(PLAIN, "u", options={option: True})


def test_an_explicit_unique_key_wins_over_derivation_and_false_turns_it_off() -> None:  # C5, F68
    derived = request(IDEMPOTENT, "u").job
    assert derived.unique_hash != request(IDEMPOTENT, "u", options={"unique_key": "k"}).job.unique_hash
    assert request(IDEMPOTENT, "u", options={"idempotent": False}).job.unique_hash is None
    explicit = request(IDEMPOTENT, "u", options={"unique_key": "k", "idempotent": False}).job
    assert (explicit.key, explicit.unique_hash is not None) == ("k", True)


def test_equal_calls_have_one_derived_key() -> None:  # C4, F62, F63
    hashes = {
        request(IDEMPOTENT, "u").job.unique_hash,
        request(IDEMPOTENT, user_id="u").job.unique_hash,
        request(IDEMPOTENT, "u", False).job.unique_hash,
        request(IDEMPOTENT, full=False, user_id="u").job.unique_hash,
    }
    assert len(hashes) == 1
    assert request(IDEMPOTENT, "v").job.unique_hash not in hashes


def test_false_is_the_only_way_to_switch_debounce_off() -> None:  # B6
    off = request(DEBOUNCED, "u", options={"debounce": False})
    assert (off.debounce, off.job.window_hash) == (None, None)
    replaced = request(DEBOUNCED, "u", options={"debounce_replace_payload": True})
    assert replaced.debounce == Debounce("5m", "report:{user_id}", "30m", replace_payload=True), "F100"
    own = {"debounce": "1s", "debounce_key": "mine:{user_id}", "debounce_max_wait": "9s"}
    assert (request(DEBOUNCED, "u", options=own).job.key) == "mine:u"


@pytest.mark.parametrize("user_id", [None, "", "  ", [], {}])
def test_a_key_that_resolves_to_nothing_inserts_nothing(user_id: Any) -> None:  # K2, F92-F95
    with pytest.raises(KeyTemplateError, match="user_id"):
        request(DEBOUNCED, user_id)


def test_arguments_that_the_signature_does_not_take_are_refused() -> None:
    with pytest.raises(TypeError, match=r"task 'plain'.*missing a required argument: 'user_id'"):
        request(PLAIN)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), object(), {1, 2}, "a\x00b", "\ud800", b"bytes"]
)
def test_a_payload_that_json_or_postgres_can_t_carry_is_refused(value: Any) -> None:  # X9
    with pytest.raises(PayloadError, match="payload must"):
        request(PLAIN, value)


def test_an_escaped_backslash_is_no_nul() -> None:
    assert request(PLAIN, "\\u0000").job.payload == '[["\\\\u0000"],{}]'


def test_a_payload_over_the_limit_is_refused() -> None:  # X9
    with pytest.raises(PayloadError, match="payload must be <= 1048576 bytes"):
        request(PLAIN, "x" * (1 << 20))
