"""Experiments: one policy on one workload, or several on the same.

``simulate`` takes the very object that production runs: a `flowq.policy.Flow`, a declared `flowq.task.TaskSpec`, or a
whole `flowq.Queue` with its tasks. ``compare`` runs several on the same calls with the same service times, so that what
differs is the policy and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flowq.errors import ConfigurationError
from flowq.policy import Flow
from flowq.programs import Request
from flowq.programs.declare import Declaration
from flowq.task import TaskSpec
from flowq.units import Duration, duration_us, shown, whole_number
from flowsim.result import Result, Slo, seconds_text
from flowsim.service import service_of
from flowsim.statistics import Interval, batch_means
from flowsim.streams import Integers
from flowsim.workload import Workload
from flowsim.world import Drive, Gates, Offer, World, over_memory

__all__ = ["Comparison", "Plan", "compare", "plan", "simulate"]

_TASK: Final = "task"
_LARGEST: Final = 2**31 - 1


class Plan(NamedTuple):
    """All that a run is made of, resolved; `run` can be called again and again, over any store."""

    policy: str
    specs: tuple[TaskSpec, ...]
    gates: Gates
    workload: str
    service: str
    arrivals_us: Integers
    keys: NDArray[Any] | None
    service_us: Integers
    task_of: Integers | None
    workers: int
    seed: int
    until_us: int | None
    slo: Slo | None

    def offer(self, namespace: str = "default") -> Offer:
        """Return the calls as requests: one for each task and key."""
        codes, labels = _key_codes(self.keys, len(self.arrivals_us))
        task_of = np.zeros(len(codes), np.int64) if self.task_of is None else self.task_of
        requests: list[Request] = []
        index: dict[tuple[int, int], int] = {}
        request_of = []
        for pair in zip(task_of.tolist(), codes.tolist(), strict=True):
            at = index.get(pair)
            if at is None:
                at = index[pair] = len(requests)
                task, code = pair
                requests.append(_request(self.specs[task], labels[code] if code >= 0 else None, namespace))
            request_of.append(at)
        return Offer(self.arrivals_us.tolist(), requests, request_of, self.service_us.tolist())

    def run(self, drive: Drive, namespace: str = "default") -> Result:
        """Run the world over a store."""
        log = World(drive, self.gates, self.offer(namespace), self.workers, self.until_us).run()
        return Result(
            self.policy, self.workload, self.service, self.workers, self.seed, self.slo, self.until_us, log,
            self.arrivals_us, self.keys, self.service_us, tuple(spec.name for spec in self.specs), self.task_of,
        )  # fmt: skip


def simulate(
    source: Any,
    workload: Workload | Mapping[str, Workload],
    *,
    workers: int = 1,
    service: Any = None,
    seed: int = 0,
    until: Duration | None = None,
    slo: Duration | tuple[float, Duration] | None = None,
) -> Result:
    """Run calls against a policy and return what happened.

    Parameters
    ----------
    source : Flow, TaskSpec or flowq.Queue
        What is simulated: the object that production runs. A queue's tasks share its workers.
    workload : Workload or dict of str to Workload
        The calls; for several tasks, those of each by its name.
    workers : int
        Jobs that run at once, >= 1.
    service : Service, duration or frozen scipy distribution, optional
        How long calls take, drawn for each call; needed unless the workload holds service times, which it replaces.
    seed : int
        Of the service times; the arrivals have a seed of their own.
    until : duration, optional
        Stop before what happens at this instant; None: when every job is done.
    slo : duration or (float, duration), optional
        The longest p99 sojourn, or a quantile and its limit.

    Returns
    -------
    Result

    Raises
    ------
    ConfigurationError
        If something is missing or out of range; the message names it.

    Notes
    -----
    Arrivals are open-loop. The claim itself takes no time here; in production it takes about a millisecond.

    Examples
    --------
    >>> from flowq.policy import Flow, RateLimit
    >>> calls = Workload.poisson("20/s", "1m", seed=1)
    >>> result = simulate(Flow(RateLimit("15/s", on_excess="drop")), calls, workers=4, service="100ms")
    >>> result.books().shed > 0, result.books().offered == len(calls)
    (True, True)
    """
    return plan(source, workload, workers=workers, service=service, seed=seed, until=until, slo=slo).run(
        over_memory()
    )


def plan(
    source: Any,
    workload: Workload | Mapping[str, Workload],
    *,
    workers: int = 1,
    service: Any = None,
    seed: int = 0,
    until: Duration | None = None,
    slo: Duration | tuple[float, Duration] | None = None,
) -> Plan:
    """Resolve what `simulate` is given, and check all of it, without running it."""
    specs, declarations, policy = _source(source)
    workers = whole_number(workers, "workers", 1, _LARGEST)
    by_task = _by_task(specs, workload)
    served = [_served(each, service, whole_number(seed, "seed", 0)) for each in by_task]
    for spec, each in zip(specs, served, strict=True):
        _check_keys(spec, each)
    arrivals_us, keys, service_us, task_of = _merged(served)
    queue = specs[0].queue
    return Plan(
        policy=policy,
        specs=specs,
        gates=Gates(queue, declarations, tuple(spec.line for spec in specs)),
        workload=" + ".join(dict.fromkeys(each.name for each in by_task)),
        service="as recorded" if service is None else service_of(service).caption,
        arrivals_us=arrivals_us,
        keys=keys,
        service_us=service_us,
        task_of=task_of,
        workers=workers,
        seed=seed,
        until_us=None if until is None else duration_us(until, "until"),
        slo=None if slo is None else Slo.of(slo),
    )


# --- compare -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Several policies on the same calls.

    Parameters
    ----------
    results : dict of str to Result
        In the order given; the first is the baseline of `differences`.

    Examples
    --------
    >>> from flowq.policy import Flow, RateLimit
    >>> calls = Workload.poisson("30/s", "1m", seed=2)
    >>> both = compare({"free": Flow(), "limited": Flow(RateLimit("29/s"))}, calls, workers=4, service="20ms")
    >>> both["limited"].books().shed, bool(both.differences().loc["limited", "wait_mean_s"] > 0)
    (0, True)
    """

    results: dict[str, Result]

    def table(self) -> pd.DataFrame:
        """Return one row a policy, with the columns of `Result.summary`."""
        return pd.DataFrame(
            {name: result.summary() for name, result in self.results.items()}
        ).T.infer_objects()

    def differences(self) -> pd.DataFrame:
        """Return how much longer a call waits than under the first policy, paired call by call.

        A call waits from its arrival to the start of its job. Only calls whose job started under both are compared, so
        look at what was shed beside it.

        Returns
        -------
        DataFrame
            Index ``policy``; ``calls`` compared; ``wait_mean_s``, the mean difference, with its 95 % interval
            ``low_s``, ``high_s`` by batch means (NaN for fewer than 200 calls).
        """
        names = list(self.results)
        base = _waits_s(self.results[names[0]])
        rows = []
        for name in names[1:]:
            difference = _waits_s(self.results[name]) - base
            difference = difference[~np.isnan(difference)]
            interval: Interval | None = batch_means(difference) if len(difference) >= 200 else None
            rows.append(
                {
                    "calls": len(difference),
                    "wait_mean_s": float(difference.mean()) if len(difference) else float("nan"),
                    "low_s": float("nan") if interval is None else interval.low,
                    "high_s": float("nan") if interval is None else interval.high,
                }
            )
        return pd.DataFrame(
            rows,
            index=pd.Index(names[1:], name="policy"),
            columns=["calls", "wait_mean_s", "low_s", "high_s"],
        )

    def __getitem__(self, name: str) -> Result:
        return self.results[name]

    def __repr__(self) -> str:
        parts = (
            f"{name!r}: p99 {seconds_text(result.quantile(0.99))}" for name, result in self.results.items()
        )
        return f"Comparison({', '.join(parts)})"

    def __str__(self) -> str:
        table = self.table()
        shown = pd.DataFrame(
            {"run": table["run"], "merged": table["coalesced"] + table["merged"], "shed": table["shed"]}
        )
        for q in ("p50", "p95", "p99"):
            shown[f"{q} sojourn"] = [seconds_text(value) for value in table[f"sojourn_{q}_s"]]
        shown["worst depth"] = table["depth_max"]
        shown["drain"] = [seconds_text(value) for value in table["drain_s"]]
        return shown.to_string()

    def _repr_html_(self) -> str:
        table = self.table()
        names = list(self.results)
        cell = 'style="text-align:right;padding:1px 10px"'
        head = "".join(f'<th scope="col" {cell}>{escape(name)}</th>' for name in names)
        body = []
        for row, best, show in _ROWS:
            values = table[row].tolist()
            finite = [value for value in values if np.isfinite(value)]
            chosen = best(finite) if best is not None and len(set(finite)) > 1 else None
            cells = "".join(
                f"<td {cell}>{'<strong>' if value == chosen else ''}{escape(show(value))}"
                f"{' (best)</strong>' if value == chosen else ''}</td>"
                for value in values
            )
            body.append(
                f'<tr><th scope="row" style="text-align:left">{escape(_LABELS[row])}</th>{cells}</tr>'
            )
        if any(result.slo is not None for result in self.results.values()):
            cells = "".join(
                f"<td {cell}>{_SLO_WORDS[result.slo_met]}</td>" for result in self.results.values()
            )
            body.append(f'<tr><th scope="row" style="text-align:left">SLO</th>{cells}</tr>')
        caption = self.results[names[0]].caption()
        return (
            f'<table style="border-collapse:collapse"><caption style="text-align:left;opacity:.7;caption-side:bottom">'
            f"{escape(caption)}; the same calls for every policy</caption><thead><tr><td></td>{head}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table>"
        )


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


_ROWS: Final[tuple[tuple[str, Any, Any], ...]] = (
    ("offered", None, _count),
    ("run", None, _count),
    ("coalesced", None, _count),
    ("merged", None, _count),
    ("shed", min, _count),
    ("pending", None, _count),
    ("sojourn_p50_s", min, seconds_text),
    ("sojourn_p95_s", min, seconds_text),
    ("sojourn_p99_s", min, seconds_text),
    ("sojourn_mean_s", min, seconds_text),
    ("depth_max", min, _count),
    ("drain_s", min, seconds_text),
    ("utilisation", None, _share),
)
_LABELS: Final = {
    "offered": "calls offered",
    "run": "jobs run",
    "coalesced": "calls coalesced",
    "merged": "calls merged",
    "shed": "jobs shed",
    "pending": "jobs pending",
    "sojourn_p50_s": "sojourn p50",
    "sojourn_p95_s": "sojourn p95",
    "sojourn_p99_s": "sojourn p99",
    "sojourn_mean_s": "sojourn mean",
    "depth_max": "worst depth",
    "drain_s": "drained after",
    "utilisation": "workers busy",
}
_SLO_WORDS: Final = {True: "met", False: "missed", None: "none"}


def compare(
    policies: Mapping[str, Any],
    workload: Workload | Mapping[str, Workload],
    *,
    workers: int = 1,
    service: Any = None,
    seed: int = 0,
    until: Duration | None = None,
    slo: Duration | tuple[float, Duration] | None = None,
) -> Comparison:
    """Run several policies on the same calls, with the same service times.

    Parameters
    ----------
    policies : dict of str to Flow, TaskSpec or flowq.Queue
        By the names that tables and plots show.
    workload, workers, service, seed, until, slo
        As for `simulate`.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> from flowq.policy import CoDel, Flow
    >>> both = compare(
    ...     {"wait": Flow(), "shed": Flow(CoDel("50ms", "500ms", law="slough"))},
    ...     Workload.poisson("30/s", "1m", seed=2),
    ...     service="40ms",
    ... )
    >>> table = both.table()
    >>> bool(table.loc["shed", "sojourn_p99_s"] < table.loc["wait", "sojourn_p99_s"])
    True
    """
    from tqdm import tqdm

    if not policies:
        raise ConfigurationError("policies must name at least one: {}")
    results = {}
    for name, source in tqdm(policies.items(), desc="compare", leave=False, disable=None):
        results[str(name)] = simulate(
            source, workload, workers=workers, service=service, seed=seed, until=until, slo=slo
        )
    return Comparison(results)


def _waits_s(result: Result) -> NDArray[np.float64]:
    """Of each call: from its arrival to the start of its job; NaN: never started."""
    start_s = result.jobs["start_s"].to_numpy()
    waits: NDArray[np.float64] = (
        start_s[result.calls["job"].to_numpy()] - result.calls["arrival_s"].to_numpy()
    )
    return waits


# --- what is simulated ---------------------------------------------------------------------------------------------


def _source(source: Any) -> tuple[tuple[TaskSpec, ...], tuple[Declaration, ...], str]:
    """The tasks, their gates, and the policy in words."""
    if isinstance(source, Flow):
        source = TaskSpec(_TASK, flow=source)
    if isinstance(source, TaskSpec):
        return (source,), source.declarations(), source.flow.describe()
    if not callable(getattr(source, "specs", None)):
        raise TypeError(f"simulate takes a Flow, a TaskSpec or a flowq.Queue: {shown(source)}")
    specs: tuple[TaskSpec, ...] = tuple(source.specs())
    if not specs:
        raise ConfigurationError("queue must have a declared task: it has none")
    queues = sorted({spec.queue for spec in specs})
    if len(queues) > 1:
        raise ConfigurationError(f"one queue is simulated at a time, these tasks wait in {', '.join(queues)}")
    words = [f"{spec.name}: {spec.flow.describe()}" for spec in specs]
    declarations = _declared(source, specs)
    for kind, name, limit in declarations:
        if kind in ("queue_rate", "queue_concurrency") and limit is not None:
            words.append(f"queue {name}: {limit.describe()}")
    return specs, declarations, "; ".join(words)


def _declared(source: Any, specs: Iterable[TaskSpec]) -> tuple[Declaration, ...]:
    """The gates of the tasks and of their queue."""
    queue = next(iter(specs)).queue
    return tuple(
        each for each in source.declarations() if each.kind.startswith("task_") or each.name == queue
    )


def _by_task(specs: Sequence[TaskSpec], workload: Workload | Mapping[str, Workload]) -> list[Workload]:
    if isinstance(workload, Workload):
        if len(specs) > 1:
            tasks = ", ".join(repr(spec.name) for spec in specs)
            raise ConfigurationError(
                f"workload must name the calls of each task, as {{task: workload}}: {tasks}"
            )
        return [workload]
    if not isinstance(workload, Mapping):
        raise TypeError(f"workload must be a Workload, or a dict of them by task: {shown(workload)}")
    names = [spec.name for spec in specs]
    if unknown := [name for name in workload if name not in names]:
        raise ConfigurationError(f"workload names {unknown[0]!r}, which is no task here: {', '.join(names)}")
    if missing := [name for name in names if name not in workload]:
        raise ConfigurationError(f"workload must have the calls of every task: {missing[0]!r} is missing")
    return [workload[name] for name in names]


def _served(workload: Workload, service: Any, seed: int) -> Workload:
    if service is not None:
        return workload.with_service(service, seed)
    if workload.service_us is None:
        raise ConfigurationError(
            f"{workload.name} holds no service times: pass service=, such as exponential('100ms') or '100ms'"
        )
    return workload


def _check_keys(spec: TaskSpec, workload: Workload) -> None:
    keyed = spec.flow.debounce or spec.flow.coalesce
    if keyed is not None and workload.keys is None:
        raise ConfigurationError(
            f"{type(keyed).__name__} goes by key, and {workload.name} has none: pass keys= (or key= for a table)"
        )


def _merged(
    workloads: list[Workload],
) -> tuple[Integers, NDArray[Any] | None, Integers, Integers | None]:
    """All calls in the order of arrival; of equal instants, in the order of the tasks."""
    services = [each.service_us for each in workloads if each.service_us is not None]
    if len(workloads) == 1:
        return workloads[0].arrivals_us, workloads[0].keys, services[0], None
    arrivals_us = np.concatenate([each.arrivals_us for each in workloads])
    order = np.argsort(arrivals_us, kind="stable")
    keys = None
    if any(each.keys is not None for each in workloads):
        keys = np.concatenate(
            [
                np.full(len(each), None, dtype=object) if each.keys is None else each.keys.astype(object)
                for each in workloads
            ]
        )[order]
    task_of = np.repeat(np.arange(len(workloads)), [len(each) for each in workloads])
    return arrivals_us[order], keys, np.concatenate(services)[order], task_of[order]


def _key_codes(keys: NDArray[Any] | None, calls: int) -> tuple[Integers, list[str]]:
    """Of each call: the index of its key's text, -1 for none."""
    if keys is None:
        return np.full(calls, -1, dtype=np.int64), []
    codes, labels = pd.factorize(keys)
    return codes.astype(np.int64), [str(label) for label in labels]


def _request(spec: TaskSpec, key: str | None, namespace: str) -> Request:
    return spec.keyed_request(key, namespace)
