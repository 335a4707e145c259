"""A PostgreSQL job queue with flow control.

Public names are imported at their first use, so that ``import flowq`` costs nothing and asks for no more than
psycopg, and the policies for not even that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flowq.errors import (
        ConfigurationError,
        DatabaseUnreachable,
        FlowqError,
        HandlerError,
        JobCancelled,
        JobExpired,
        JobFailed,
        JobNotSucceeded,
        JobShed,
        KeyLockTimeout,
        KeyTemplateError,
        LeaseLost,
        PayloadError,
        QueueFull,
        ResultTimeout,
        SchemaMismatch,
        ServerUnavailable,
        StoreError,
        UnknownJob,
        UnknownTask,
    )
    from flowq.job import JobState, Outcome
    from flowq.memory import MemoryStore
    from flowq.policy import Coalesce, CoDel, Debounce, Flow, RateLimit, Retry
    from flowq.policy.rate_limit import Rate
    from flowq.queue import AsyncQueue, Queue
    from flowq.running import current_job
    from flowq.worker import Worker

__version__: Final = "0.1.0"

_NAMES_OF: Final[dict[str, tuple[str, ...]]] = {
    "flowq.errors": (
        "ConfigurationError",
        "DatabaseUnreachable",
        "FlowqError",
        "HandlerError",
        "JobCancelled",
        "JobExpired",
        "JobFailed",
        "JobNotSucceeded",
        "JobShed",
        "KeyLockTimeout",
        "KeyTemplateError",
        "LeaseLost",
        "PayloadError",
        "QueueFull",
        "ResultTimeout",
        "SchemaMismatch",
        "ServerUnavailable",
        "StoreError",
        "UnknownJob",
        "UnknownTask",
    ),
    "flowq.job": ("JobState", "Outcome"),
    "flowq.memory": ("MemoryStore",),
    "flowq.policy": ("CoDel", "Coalesce", "Debounce", "Flow", "RateLimit", "Retry"),
    "flowq.policy.rate_limit": ("Rate",),
    "flowq.queue": ("AsyncQueue", "Queue"),
    "flowq.running": ("current_job",),
    "flowq.worker": ("Worker",),
}
_HOME_OF: Final = {name: module for module, names in _NAMES_OF.items() for name in names}
"""Public name → the module that defines it."""

__all__ = [
    "AsyncQueue",
    "CoDel",
    "Coalesce",
    "ConfigurationError",
    "DatabaseUnreachable",
    "Debounce",
    "Flow",
    "FlowqError",
    "HandlerError",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobNotSucceeded",
    "JobShed",
    "JobState",
    "KeyLockTimeout",
    "KeyTemplateError",
    "LeaseLost",
    "MemoryStore",
    "Outcome",
    "PayloadError",
    "Queue",
    "QueueFull",
    "Rate",
    "RateLimit",
    "ResultTimeout",
    "Retry",
    "SchemaMismatch",
    "ServerUnavailable",
    "StoreError",
    "UnknownJob",
    "UnknownTask",
    "Worker",
    "__version__",
    "current_job",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'flowq' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
