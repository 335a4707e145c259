"""Simulate what flowq does: the same programs and policies, over a SimPy clock.

Public names are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from flowq import __version__

if TYPE_CHECKING:
    from flowsim.experiment import Comparison, compare, simulate
    from flowsim.result import Result, Slo
    from flowsim.service import Service, constant, exponential, lognormal
    from flowsim.statistics import Interval, batch_means, replications, t_interval
    from flowsim.validate import ConformanceReport, conformance
    from flowsim.workload import Workload

_HOME_OF: Final[dict[str, str]] = {
    "Comparison": "flowsim.experiment",
    "ConformanceReport": "flowsim.validate",
    "Interval": "flowsim.statistics",
    "Result": "flowsim.result",
    "Service": "flowsim.service",
    "Slo": "flowsim.result",
    "Workload": "flowsim.workload",
    "batch_means": "flowsim.statistics",
    "compare": "flowsim.experiment",
    "conformance": "flowsim.validate",
    "constant": "flowsim.service",
    "exponential": "flowsim.service",
    "lognormal": "flowsim.service",
    "replications": "flowsim.statistics",
    "simulate": "flowsim.experiment",
    "t_interval": "flowsim.statistics",
}
"""Public name → the module that defines it."""
_MODULES: Final = frozenset({"plot"})

__all__ = [
    "Comparison",
    "ConformanceReport",
    "Interval",
    "Result",
    "Service",
    "Slo",
    "Workload",
    "__version__",
    "batch_means",
    "compare",
    "conformance",
    "constant",
    "exponential",
    "lognormal",
    "plot",
    "replications",
    "simulate",
    "t_interval",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"flowsim.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'flowsim' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, *_MODULES})
