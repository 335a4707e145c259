"""When a worker says that it sleeps, and how several queues share its slots: decisions without a server."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowq.programs import Claimed
from flowq.programs.commands import Started
from flowq.worker.attention import (
    FLOOD_CLAIMS,
    FLOOD_S,
    FULL_S,
    GLANCE_S,
    LINGER_S,
    NEVER,
    Attention,
    Look,
    Say,
    Wait,
)
from flowq.worker.sources import Source, Sources


class TestAttention:
    @pytest.fixture
    def asleep(self) -> Attention:
        attention = Attention(notify=True, poll_s=5.0)
        attention.said(0.0, 10.0)
        return attention

    def test_it_says_so_before_its_first_rest_and_not_before_each(self) -> None:
        attention = Attention(notify=True, poll_s=5.0)
        assert attention.awake
        assert attention.decide(0.0, attentive=True) == Say(10.0)
        attention.said(0.0, 10.0)
        assert not attention.awake
        for now in (0.001, 1.0, 4.9):
            attention.found(now)
            assert attention.decide(now + 0.001, attentive=True) == Wait(NEVER)

    def test_its_word_always_covers_a_whole_poll(self, asleep: Attention) -> None:
        assert asleep.decide(5.0, attentive=True) == Wait(NEVER)
        assert asleep.decide(5.001, attentive=True) == Say(10.0)

    def test_awake_it_looks_again_while_that_finds_something(self) -> None:
        attention = Attention(notify=True, poll_s=5.0)
        attention.found(1.0)
        assert attention.decide(1.0 + LINGER_S / 2, attentive=True) == Look(GLANCE_S)
        assert attention.decide(1.0 + LINGER_S, attentive=True) == Say(10.0)

    def test_a_flood_keeps_it_awake(self, asleep: Attention) -> None:
        step = FLOOD_S / FLOOD_CLAIMS / 2
        for n in range(FLOOD_CLAIMS):
            asleep.found(n * step)
            assert asleep.decide(n * step, attentive=True) == Wait(NEVER)
        asleep.found(FLOOD_CLAIMS * step)
        assert asleep.decide(FLOOD_CLAIMS * step, attentive=True) == Say(None)

    def test_a_trickle_is_no_flood(self, asleep: Attention) -> None:
        for n in range(10 * FLOOD_CLAIMS):
            now = n * FLOOD_S / FLOOD_CLAIMS * 1.2
            asleep.said(now, 10.0)
            asleep.found(now)
            assert asleep.decide(now, attentive=True) == Wait(NEVER)

    def test_full_for_a_while_it_asks_not_to_be_notified(self, asleep: Attention) -> None:
        assert asleep.decide(1.0, attentive=False) == Wait(1.0 + FULL_S)
        assert asleep.decide(1.0 + FULL_S, attentive=False) == Say(None)
        asleep.said(1.0 + FULL_S, None)
        assert asleep.decide(2.0, attentive=False) == Wait(NEVER)

    def test_full_for_a_moment_it_says_nothing(self, asleep: Attention) -> None:
        for now in (1.0, 1.04, 1.08, 1.12):
            assert asleep.decide(now, attentive=False) == Wait(now + FULL_S)
            assert asleep.decide(now + 0.02, attentive=True) == Wait(NEVER)

    @pytest.mark.parametrize("attentive", [True, False])
    def test_without_notifications_it_never_says_anything(self, attentive: bool) -> None:
        attention = Attention(notify=False, poll_s=5.0)
        assert attention.awake
        assert attention.decide(0.0, attentive) == Wait(NEVER)


def claimed(
    started: int, *, come_back_us: int | None = None, more: bool = False, gated: bool = False
) -> Claimed:
    jobs = [Started(n, "t", "[[],{}]", 1, 0, 0, None, 0, 0) for n in range(started)]
    return Claimed(1_000_000, jobs, (), come_back_us, gated, more, frozenset())


class TestSources:
    def test_a_queue_is_ready_until_a_claim_finds_less_than_it_asked_for(self) -> None:
        sources = Sources(["a"], 0.0)
        [a] = sources.ready()
        a.hinted = False
        a.claimed(claimed(5), 5, asked_s=10.0)
        assert sources.ready() == [a]
        a.hinted = False
        a.claimed(claimed(4), 5, asked_s=10.0)
        assert sources.ready() == []
        assert sources.drained()
        sources.hint("a")
        assert sources.ready() == [a]

    def test_more_to_shed_keeps_it_ready(self) -> None:
        sources = Sources(["a"], 0.0)
        [a] = sources.ready()
        a.hinted = False
        a.claimed(claimed(0, more=True), 5, asked_s=10.0)
        assert sources.ready() == [a]

    def test_a_hint_that_comes_while_a_claim_is_under_way_is_not_forgotten(self) -> None:
        a = Source("a")
        a.hinted = False  # as the claim is sent
        a.hint()
        a.claimed(claimed(0), 5, asked_s=10.0)
        assert a.ready

    def test_the_servers_instants_count_only_by_their_distance(self) -> None:
        sources = Sources(["a", "b"], 0.0)
        a, b = sources.ready()
        a.hinted = False
        a.claimed(claimed(0, come_back_us=1_250_000), 1, asked_s=77.0)
        b.hinted = False
        b.claimed(claimed(0), 1, asked_s=77.0)
        assert sources.next_s() == pytest.approx(77.25)
        assert not sources.drained()
        sources.tick(77.2)
        assert sources.ready() == []
        sources.tick(77.25)
        assert sources.ready() == [a]
        assert sources.next_s() == NEVER

    def test_a_claim_of_none_can_do_no_more_until_something_happens(self) -> None:
        sources = Sources(["a"], 0.0)
        [a] = sources.ready()
        a.hinted = False
        a.hinted = False
        a.claimed(claimed(0), 0, asked_s=1.0)
        assert (a.ready, a.hinted) == (True, False)

    @given(
        st.lists(st.integers(1, 30), min_size=1, max_size=60),
        st.integers(2, 5),
        st.floats(0, 1, exclude_max=True),
    )
    def test_busy_queues_share_evenly_however_many_slots_are_free(
        self, frees: list[int], queues: int, u: float
    ) -> None:
        sources = Sources([str(n) for n in range(queues)], u)
        total: Counter[str] = Counter()
        for free in frees:
            shares = sources.shares(sources.ready(), free)
            assert sum(share for _, share in shares) == free
            sources.pay(shares)
            total.update({source.name: share for source, share in shares})
            counts = [total[str(n)] for n in range(queues)]
            assert max(counts) - min(counts) <= 2

    @given(st.lists(st.integers(1, 20), min_size=1, max_size=40))
    def test_an_idle_queue_saves_nothing_up(self, frees: list[int]) -> None:
        sources = Sources(["busy", "idle"], 0.0)
        for free in frees:
            busy, idle = sources.ready()
            starts = []
            for source, share in sources.shares([busy, idle], free):
                started = share if source is busy else 0
                source.hinted = False
                source.claimed(claimed(started), share, asked_s=0.0)
                starts.append((source, started))
            sources.pay(starts)
            sources.hint()
        assert set(sources._credits.values()) <= {-1, 0, 1}
