"""Reference numbers on recordings of real systems, computed elsewhere by programs that share nothing with this one.

``FLOWSIM_DATA`` names the folder of the recordings; they may not be published, so nothing of them is kept here.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flowq.policy import Debounce, Flow, Rate, RateLimit
from flowsim import Result, Workload, simulate

FOLDER = os.environ.get("FLOWSIM_DATA")
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="FLOWSIM_DATA does not name the folder of the recordings"
)

UNLIMITED = 4
"""Workers that are never all busy for longer than an instant: every call takes no time."""
FOREVER = "365d"


@cache
def recording(name: str) -> pd.DataFrame:
    return pd.read_csv(Path(FOLDER or "") / f"{name}.csv.gz")


def waits_s(result: Result) -> np.ndarray[Any, np.dtype[np.float64]]:
    """From the call that opened a job to its start."""
    jobs = result.jobs
    return (jobs["start_s"] - jobs["arrival_s"]).to_numpy()


# --- workers: single FIFO queue, service as recorded ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "mean", "p95", "p99", "longest", "waited"),
    [
        (1, 3207, 9198, 16205, 17767, 0.896),
        (2, 148.7, 802, 2192, 2305, 0.538),
        (3, 5.6, 30, 115, 305, 0.209),
        (4, 1.0, 4, 20, 164, 0.069),
        (5, 0.3, 0, 7, 111, 0.019),
        (6, 0.1, 0, 0, 67, 0.007),
    ],
)
def test_waits_of_image_requests_by_workers(
    workers: int, mean: float, p95: float, p99: float, longest: float, waited: float
) -> None:
    frame = recording("genai_image_requests_2024a")
    calls = Workload.from_frame(frame[frame["service_s"] > 0], key="key", service="service_s", name="genai")
    result = simulate(Flow(), calls, workers=workers)
    summary = result.summary()
    assert summary["sojourn_mean_s"] == pytest.approx(mean, rel=5e-4, abs=0.05)
    assert summary["sojourn_p95_s"] == pytest.approx(p95, abs=0.5)
    assert summary["sojourn_p99_s"] == pytest.approx(p99, abs=0.5)
    assert summary["sojourn_max_s"] == longest
    assert (result.sojourns_s > 0).mean() == pytest.approx(waited, abs=5e-4)


# --- throttle: the bucket that delays nothing, and p99 wait with burst 10, at k times the mean rate ----------------

THROTTLE = {
    "azure_llm_code_2023": {1.1: (1378, 460), 1.25: (838, 249), 1.5: (605, 142), 2: (497, 88), 3: (350, 42)},
    "azure_llm_conv_2023": {1.1: (1084, 174), 1.25: (413, 56), 1.5: (38, 2.3), 2: (9.2, 0), 3: (6.0, 0)},
    "nasa_http_19950701": {1.1: (598, 695), 1.25: (311, 304), 1.5: (51, 23), 2: (13.5, 0), 3: (9.4, 0)},
}


@pytest.mark.parametrize(
    ("name", "k", "bucket", "p99"),
    [(name, k, *numbers) for name, row in THROTTLE.items() for k, numbers in row.items()],
)
def test_bucket_and_wait_of_a_throttle(name: str, k: float, bucket: float, p99: float) -> None:
    calls = Workload.from_frame(recording(name), name=name)
    rate = Rate(round(100 * k) * len(calls), 100 * calls.span_s)
    needed = calls.zero_wait_burst(rate)
    # The references are rounded to three or four digits; one of them, 311, stands for 310.46.
    assert needed == pytest.approx(bucket, abs=0.55 if bucket > 14 else 0.05)
    result = simulate(Flow(RateLimit(rate, burst=10)), calls, workers=UNLIMITED, service=0)
    assert result.quantile(0.99) == pytest.approx(p99, abs=0.05 if p99 < 10 else 0.5)
    # Workers enough: the longest wait is what the bucket lacks, divided by the rate.
    lacking = max(0.0, needed - 10) / (float(rate.count) * 1e6 / rate.per_us)
    assert result.sojourns_s.max() == pytest.approx(lacking, abs=2e-6)


@pytest.mark.parametrize("name", THROTTLE)
def test_the_bucket_that_is_needed_delays_nothing_and_one_less_does(name: str) -> None:
    calls = Workload.from_frame(recording(name), name=name)
    rate = Rate(2 * len(calls), calls.span_s)
    needed = calls.zero_wait_burst(rate)
    enough = simulate(Flow(RateLimit(rate, burst=int(needed) + 1)), calls, workers=UNLIMITED, service=0)
    assert enough.sojourns_s.max() == 0
    short = simulate(Flow(RateLimit(rate, burst=int(needed) - 1)), calls, workers=UNLIMITED, service=0)
    assert short.sojourns_s.max() > 0


# --- debounce, and coalescing in a fixed window from the first call (a window that its ceiling makes rigid) --------


@pytest.mark.parametrize(
    ("key", "window", "ceiling", "runs", "longest", "p99", "rigid"),
    [
        ("user", 10, None, 32_952, 202, 29, 34_277),
        ("user", 60, None, 25_478, 10_134, 225, 27_794),
        ("user", 60, 300, 25_787, 300, 300, None),
        ("user", 300, 900, 21_309, 900, 900, 22_460),
        ("wiki", 60, None, 7_243, 44_232, 589, 11_823),
        ("wiki", 60, 300, 7_919, 300, 300, None),
        ("wiki", 300, None, 2_138, 83_880, 5_662, 4_858),
        ("wiki", 300, 900, 2_937, 900, 900, None),
        ("page", 300, None, 38_328, 1_083, 428, 38_366),
    ],
)
def test_runs_and_delays_of_debounced_edits(
    key: str, window: int, ceiling: int | None, runs: int, longest: float, p99: float, rigid: int | None
) -> None:
    frame = recording("wiki_edits_20150912")
    # Users and pages are numbered within their wiki.
    keys = frame["wiki"] if key == "wiki" else frame["wiki"] + "/" + frame[key].astype(str)
    calls = Workload.from_frame(frame.assign(key=keys), key="key", name="wiki")
    assert len(calls) == 39_244
    result = simulate(Flow(Debounce(window, "{k}", ceiling or FOREVER)), calls, workers=UNLIMITED, service=0)
    assert len(result.jobs) == runs
    assert waits_s(result).max() == pytest.approx(longest, abs=0.5)
    assert np.quantile(waits_s(result), 0.99) == pytest.approx(p99, abs=0.5)
    if rigid is not None:
        result = simulate(Flow(Debounce(window, "{k}", window)), calls, workers=UNLIMITED, service=0)
        assert len(result.jobs) == rigid
        assert waits_s(result) == pytest.approx(window)
