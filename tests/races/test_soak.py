"""A short soak: workers, connections and the whole server are killed at random, and the balance holds."""

from __future__ import annotations

import pytest

from soak import Soak


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seed", [3, 4])
def test_nothing_is_lost_and_nothing_runs_twice_under_one_lease(seed: int) -> None:  # X5, X6, B98, B146
    balance = Soak(20_000, processes=2, server_kills=True, seed=seed).run()
    assert balance.holds(), balance
    assert min(balance.worker_kills, balance.connection_kills) > 0, balance
