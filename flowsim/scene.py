"""Scenes: the calls of the demonstration, the policies that meet them, and what serves them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from flowq.errors import ConfigurationError
from flowq.policy import Coalesce, CoDel, Debounce, Flow, Rate, RateLimit
from flowq.units import duration_text
from flowsim.experiment import Comparison, compare
from flowsim.result import Result
from flowsim.service import Service, exponential
from flowsim.validate import ConformanceReport
from flowsim.workload import Workload

__all__ = [
    "SEED", "Demonstration", "Scene", "burst_scene", "busiest", "first_calls", "flows_for", "live_scene", "simulated",
    "trace_scene",
]  # fmt: skip

SEED = 1
_LIVE_CALLS, _LIVE_S = 80, 4.0


class Scene(NamedTuple):
    """Calls, and what serves them."""

    flows: dict[str, Flow]
    workload: Workload
    workers: int
    service: Service | None
    """None: as recorded."""

    def with_(self, limit: RateLimit | None, workers: int | None) -> Scene:
        """Return the scene with another limit, or other workers, where they are given."""
        flows = self.flows
        if limit is not None:
            dropping = RateLimit(limit.rate, limit.burst, on_excess="drop")
            flows = flows | {"throttle": Flow(limit), "throttle, drop": Flow(dropping)}
        return self._replace(flows=flows, workers=self.workers if workers is None else workers)

    @property
    def serving(self) -> str:
        """What serves the calls, in words."""
        service = "service as recorded" if self.service is None else f"service {self.service}"
        return f"{self.workers} worker{'s' if self.workers > 1 else ''}, {service}"


class Demonstration(NamedTuple):
    """All that the demonstration found."""

    server: str
    scene: Scene
    simulated: Comparison
    conformance: dict[str, ConformanceReport]
    live: Scene
    predicted: Comparison
    measured: dict[str, Result]


def flows_for(limit: RateLimit, window_us: int, target_us: int) -> dict[str, Flow]:
    """Return one flow of each kind, from three numbers: a rate, a quiet time, and a sojourn one can live with."""
    window, max_wait = duration_text(window_us), duration_text(4 * window_us)
    target, interval = duration_text(target_us), duration_text(4 * target_us)
    return {
        "no control": Flow(),
        "throttle": Flow(limit),
        "coalesce": Flow(Coalesce("{key}")),
        "debounce": Flow(Debounce(window, "{key}", max_wait)),
        "CoDel, rfc8289": Flow(CoDel(target, interval)),
        "CoDel, slough": Flow(CoDel(target, interval, law="slough")),
        "throttle, drop": Flow(RateLimit(limit.rate, limit.burst, on_excess="drop")),
    }


_FLOWS = flows_for(RateLimit("15/s", burst=5), 1_000_000, 250_000)


def burst_scene() -> Scene:
    """Half a minute of calls with a spike of 60 a second, for workers that can do 20."""
    workload = Workload.spike("8/s", "60/s", "30s", at="5s", length="5s", seed=SEED, keys=40, zipf=1.0)
    return Scene(_FLOWS, workload, 2, exponential("100ms"))


def live_scene() -> Scene:
    """A burst of a few seconds, to be played in real time."""
    workload = Workload.spike("8/s", "50/s", "4s", at="1s", length="1.5s", seed=SEED, keys=12, zipf=1.0)
    return Scene(_FLOWS, workload, 2, exponential("100ms"))


def trace_scene(workload: Workload) -> Scene:
    """Recorded calls, with policies sized from them by rules of thumb that are printed with the answers.

    The limit is 1.25 times the mean rate with a burst of 10; the quiet time is ten mean gaps, at least a second; the
    target is five mean service times; workers carry the mean load at 70 %.
    """
    if len(workload) < 2 or workload.span_s == 0:
        raise ConfigurationError(f"trace must have at least two calls at different times: {workload!r}")
    rate = workload.mean_rate * 1.25
    limit = RateLimit(f"{rate:.3f}/s" if rate >= 1 else Rate(1, f"{1 / rate:.3f}s"), burst=10)
    if workload.service_us is None:
        service_s, service = 0.7 / workload.mean_rate, exponential(f"{0.7 / workload.mean_rate:.6f}s")
        workers = 1
    else:
        service_s, service = float(np.mean(workload.service_us)) / 1e6, None
        workers = max(1, math.ceil(workload.mean_rate * service_s / 0.7))
    window_us = max(1_000_000, round(10e6 / workload.mean_rate))
    return Scene(flows_for(limit, window_us, max(1_000, round(5e6 * service_s))), workload, workers, service)


def busiest(workload: Workload) -> Workload:
    """Return the busiest stretch of a recording, sped up or slowed down to a few seconds."""
    arrivals = workload.arrivals_us
    n = min(_LIVE_CALLS, len(arrivals))
    begin = int(np.argmin(arrivals[n - 1 :] - arrivals[: len(arrivals) - n + 1]))
    stretch = slice(begin, begin + n)
    span_us = max(1, int(arrivals[stretch][-1] - arrivals[begin]))
    scaled = np.round((arrivals[stretch] - arrivals[begin]) * (_LIVE_S * 1e6 / span_us)).astype(np.int64)
    keys = None if workload.keys is None else workload.keys[stretch]
    return Workload(scaled, keys, None, f"{workload.name}, its busiest {n} calls in {_LIVE_S:g} s")


def first_calls(workload: Workload, calls: int) -> Workload:
    """Return the first calls of a workload."""
    if len(workload) <= calls:
        return workload
    n = slice(0, calls)
    keys = None if workload.keys is None else workload.keys[n]
    service_us = None if workload.service_us is None else workload.service_us[n]
    return Workload(workload.arrivals_us[n], keys, service_us, f"{workload.name}, its first {calls} calls")


def simulated(scene: Scene | None = None) -> Comparison:
    """Run a scene in the simulator; by default the synthetic burst's."""
    scene = scene or burst_scene()
    return compare(scene.flows, scene.workload, workers=scene.workers, service=scene.service, seed=SEED)
