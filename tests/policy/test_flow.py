"""Flow: one value that carries the policies of a task or queue from notebook to production."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import flowq.policy
from flowq.errors import ConfigurationError
from flowq.policy import Coalesce, CoDel, Debounce, Flow, Policy, Rate, RateLimit, Retry

FLOWS = [
    Flow(),
    Flow(RateLimit("10/s")),
    Flow(RateLimit(Rate(20, "3s"), burst=2.5, on_excess="drop", start="empty")),
    Flow(CoDel("5ms", "100ms", law="slough", exempt_backlog=2, max_shed=None)),
    Flow(Coalesce()),
    Flow(Coalesce("account:{id}"), Retry(0)),
    Flow(Debounce("5s", "doc:{id}", "1m", replace_payload=True), RateLimit("100/m")),
    Flow(Coalesce(), RateLimit("1.5/s"), CoDel("100ms", "1s"), Retry(5, delays=[0.5, "1m"])),
]
flows = pytest.mark.parametrize("flow", FLOWS, ids=repr)


@flows
def test_its_repr_evaluates_back(flow: Flow) -> None:
    assert eval(repr(flow)) == flow


@flows
def test_it_survives_json_text_pickle_and_copy(flow: Flow) -> None:
    assert Flow.from_json(json.loads(json.dumps(flow.to_json(), allow_nan=False))) == flow
    assert pickle.loads(pickle.dumps(flow)) == flow
    assert copy.deepcopy(flow) == flow
    assert hash(Flow.from_json(flow.to_json())) == hash(flow)


def test_flows_of_other_policies_differ() -> None:
    assert len(set(FLOWS)) == len(FLOWS)
    assert Flow() != "Flow()"
    assert Flow(RateLimit("10/s")) != Flow(RateLimit("600/m"))


def test_the_order_in_which_policies_are_named_is_nothing() -> None:
    policies: list[Policy] = [Retry(), CoDel("5ms", "100ms"), RateLimit("10/s"), Coalesce()]
    flow = Flow(*policies)
    assert flow == Flow(*reversed(policies))
    assert repr(flow) == "Flow(Coalesce(), RateLimit('10/s'), CoDel('5ms', '100ms'), Retry())"
    assert list(flow) == list(reversed(policies))
    assert len(flow) == 4


def test_it_gives_each_kind_or_none() -> None:
    flow = Flow(RateLimit("10/s"), Retry(1))
    assert (flow.rate_limit, flow.retry) == (RateLimit("10/s"), Retry(1))
    assert (flow.coalesce, flow.debounce, flow.codel) == (None, None, None)
    assert Flow(Debounce("1s", "k", "2s")).debounce == Debounce("1s", "k", "2s")
    assert Flow(Coalesce("k")).coalesce == Coalesce("k")
    assert Flow(CoDel("5ms", "1s")).codel == CoDel("5ms", "1s")


def test_no_policy_is_no_control() -> None:
    assert Flow().policies == ()
    assert Flow().describe() == "no control"


def test_it_describes_itself_in_words() -> None:
    assert Flow(Coalesce(), RateLimit("10/s", burst=5, on_excess="drop"), Retry(0)).describe() == (
        "one live job per set of arguments; at most 10/s, burst 5, excess dropped; no retry"
    )
    assert all(flow.describe() for flow in FLOWS)
    assert Flow(Retry(2, delays=[1, "1m"])).describe() == "up to 2 retries after 1s, 1m"


def test_replace_and_without_make_new_flows() -> None:
    flow = Flow(RateLimit("10/s"), Retry(5))
    assert flow.replace(RateLimit("20/s"), Coalesce()) == Flow(Coalesce(), RateLimit("20/s"), Retry(5))
    assert flow.without(Retry, CoDel) == Flow(RateLimit("10/s"))
    assert flow == Flow(RateLimit("10/s"), Retry(5))


def test_debounce_and_coalesce_are_refused_together_with_a_why() -> None:  # B7
    with pytest.raises(ConfigurationError) as caught:
        Flow(Debounce("5s", "k", "1m"), Coalesce())
    assert str(caught.value) == (
        "flow must not hold both Coalesce and Debounce: a coalesced call moves nothing, so the deadline would"
        " never slide, and a call during the run would be lost; keep one of them"
    )


def test_two_of_a_kind_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="flow must hold at most one RateLimit"):
        Flow(RateLimit("10/s"), RateLimit("20/s"))


@pytest.mark.parametrize("policy", [None, "10/s", RateLimit, Flow(), Rate("10/s")])
def test_what_is_no_policy_is_a_type_error(policy: Any) -> None:
    with pytest.raises(TypeError, match="flow must hold policies"):
        Flow(policy)


def test_flows_and_policies_are_frozen() -> None:
    flow = Flow(RateLimit("10/s"))
    with pytest.raises(AttributeError):
        flow.policies = ()
    with pytest.raises(AttributeError):
        del flow.policies
    for policy in Flow(*FLOWS[-1], *FLOWS[3].without(CoDel)):
        name = next(iter(policy.__dataclass_fields__))
        with pytest.raises(FrozenInstanceError):
            setattr(policy, name, None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"policies": [{"policy": "magic"}]},
            "policy must be one of coalesce, debounce, rate_limit, concurrency, codel, retry",
        ),
        ({"policies": [{"policy": "coalesce"}]}, "stored coalesce must have the fields key: it lacks key"),
        (
            {"policies": [{"policy": "coalesce", "key": None, "scope": "x"}]},
            "stored coalesce must have the fields key: it does not know scope",
        ),
        ({"policies": [{"policy": "coalesce", "key": ""}]}, "coalesce key must not be empty: ''"),
        ({"policies": [{}]}, "policy must be one of"),
        ({"policies": ["rate_limit"]}, "policy must be one of"),
        ({}, "stored flow must be"),
        ([], "stored flow must be"),
    ],
)
def test_stored_nonsense_is_refused(data: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Flow.from_json(data)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("kind", [Coalesce, Debounce, RateLimit, CoDel, Retry])
@pytest.mark.parametrize("data", [None, [], {"policy": "magic"}, {}])
def test_a_policy_reads_only_its_own_object(kind: Any, data: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"stored {kind.policy} must"):
        kind.from_json(data)


def test_the_public_names_are_these() -> None:
    assert sorted(flowq.policy.__all__) == sorted(
        {
            "Accept",
            "Bucket",
            "CoDel",
            "CoDelState",
            "Coalesce",
            "Concurrency",
            "Debounce",
            "Flow",
            "Join",
            "KeyTemplate",
        }
        | {
            "Policy",
            "Rate",
            "RateLimit",
            "Retry",
            "Rfc8289",
            "Slough",
            "Window",
            "argument_key",
            "decide_window",
        }
    )
    assert all(hasattr(flowq.policy, name) for name in flowq.policy.__all__)
