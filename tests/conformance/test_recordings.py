"""Recorded calls through the simulator and through PostgreSQL: no differing decision, over whole recordings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flowq.policy import Coalesce, CoDel, Debounce, Flow, RateLimit
from flowsim import Workload, conformance, exponential

DATA = os.environ.get("FLOWSIM_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA, reason="FLOWSIM_DATA does not name the folder of the recordings"),
]


def code_requests() -> Workload:
    return Workload.from_csv(Path(DATA or "", "azure_llm_code_2023.csv.gz"))


def wiki_edits() -> Workload:
    frame = pd.read_csv(Path(DATA or "", "wiki_edits_20150912.csv.gz"))
    frame["key"] = frame["wiki"] + "/" + frame["user"].astype(str)
    return Workload.from_frame(frame, key="key", name="wiki edits by user")


def image_requests() -> Workload:
    path = Path(DATA or "", "genai_image_requests_2024a.csv.gz")
    return Workload.from_csv(path, key="key", service="service_s")


@pytest.mark.parametrize(
    ("workload", "flow", "given"),
    [
        pytest.param(
            code_requests,
            Flow(RateLimit("5/s", burst=10), CoDel("500ms", "5s")),
            {"workers": 4, "service": exponential("400ms"), "seed": 1},
            id="bursts of code requests, throttled, CoDel by RFC 8289",
        ),
        pytest.param(
            wiki_edits,
            Flow(Debounce("60s", "{key}", "300s")),
            {"workers": 50, "service": exponential("1s"), "seed": 1},
            id="edits of wiki users, debounced",
        ),
        pytest.param(
            image_requests,
            Flow(
                Coalesce("{key}"),
                RateLimit("2/m", burst=3, on_excess="drop"),
                CoDel("30s", "5m", law="slough"),
            ),
            {"workers": 2},
            id="image requests with their own service times, coalesced, dropped, shed",
        ),
    ],
)
def test_no_decision_differs(workload: Any, flow: Flow, given: dict[str, Any], database_url: str) -> None:
    report = conformance(flow, workload(), **given, dsn=database_url)
    assert report.ok, report.first()
