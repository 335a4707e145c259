"""The decorator: keywords that are shorthand for a flow, and the registry of declared tasks.

Everything is checked when the task is declared (rules T6, B4, D1, K2), before any server is asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from flowq.errors import ConfigurationError, UnknownTask
from flowq.policy import Coalesce, CoDel, Concurrency, Debounce, Flow, RateLimit, Retry
from flowq.policy.rate_limit import Rate
from flowq.programs import Declaration
from flowq.task import CallOptions, Duration, TaskSpec
from flowq.units import flag

__all__ = ["DeclaredTask", "Registry", "flow_of"]


_NO_OPTIONS = CallOptions()


class DeclaredTask(NamedTuple):
    """A task and the function that handles its jobs."""

    spec: TaskSpec
    function: Callable[..., Any]


def flow_of(
    *,
    rate_limit: str | Rate | RateLimit | None = None,
    burst: float | None = None,
    on_excess: str | None = None,
    idempotent: bool = False,
    unique_key: str | None = None,
    debounce: Duration | None = None,
    debounce_key: str | None = None,
    debounce_max_wait: Duration | None = None,
    debounce_replace_payload: bool | None = None,
    max_concurrent: int | None = None,
    max_retries: int | None = None,
    retry_delays: Iterable[Duration] | None = None,
) -> Flow:
    """Return the flow that the decorator's keywords are shorthand for.

    Examples
    --------
    >>> flow_of(rate_limit="10/s", on_excess="drop")
    Flow(RateLimit('10/s', on_excess='drop'))
    """
    policies: list[Any] = []
    if rate_limit is None:
        for name, value in (("burst", burst), ("on_excess", on_excess)):
            if value is not None:
                raise ConfigurationError(
                    f"{name} needs a rate_limit: without one nothing is ever in excess: {value!r}"
                )
    elif isinstance(rate_limit, RateLimit):
        if burst is not None or on_excess is not None:
            raise ConfigurationError(
                "burst and on_excess are part of the RateLimit that was given: set them there"
            )
        policies.append(rate_limit)
    else:
        policies.append(RateLimit(rate_limit, burst, "defer" if on_excess is None else on_excess))  # type: ignore[arg-type]
    if unique_key is not None:
        policies.append(Coalesce(unique_key))
    elif flag(idempotent, "idempotent"):
        policies.append(Coalesce())
    if not all(
        value is None for value in (debounce, debounce_key, debounce_max_wait, debounce_replace_payload)
    ):
        policies.append(Debounce(debounce, debounce_key, debounce_max_wait, bool(debounce_replace_payload)))
    if max_concurrent is not None:
        policies.append(Concurrency(max_concurrent))
    if max_retries is not None or retry_delays is not None:
        policies.append(Retry(3 if max_retries is None else max_retries, delays=retry_delays))
    return Flow(*policies)


class Registry:
    """The tasks and queue settings that a process has declared; shared by Queue and AsyncQueue."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.tasks: dict[str, DeclaredTask] = {}
        self.queue_policies: dict[tuple[str, str], RateLimit | CoDel | Concurrency | None] = {}
        self.undeclared: dict[tuple[str, str], Declaration] = {}
        self.lines: set[tuple[str, str, int]] = set()

    def add(
        self,
        function: Callable[..., Any],
        name: str | None,
        queue: str,
        priority: int,
        flow: Flow | None,
        keywords: Mapping[str, Any],
    ) -> TaskSpec:
        """Declare a task; everything that can be wrong with it is found here."""
        if not callable(function):
            raise TypeError(f"task must be a function: {function!r}")
        if flow is not None and keywords:
            raise ConfigurationError(
                f"flow is all of a task's policies: give flow or {', '.join(keywords)}, not both"
            )
        try:
            own_flow = flow_of(**keywords) if flow is None else flow
        except TypeError as error:
            if "unexpected keyword" in str(error):
                raise TypeError(f"task(): {str(error).removeprefix('flow_of() ')}") from None
            raise
        if own_flow.codel is not None:
            raise ConfigurationError("CoDel belongs to a queue, not to a task: use set_queue_codel")
        own_name = getattr(function, "__name__", None) if name is None else name
        if own_name is None:
            raise ConfigurationError(f"task name must be given for what has no name of its own: {function!r}")
        try:
            signature = inspect.signature(function)
        except ValueError:
            raise ConfigurationError(
                f"task must have a signature, as Python functions have: {function!r}; wrap it in a function"
            ) from None
        spec = TaskSpec(own_name, queue, own_flow, priority, signature)
        known = self.tasks.get(own_name)
        if known is not None and known.function is not function:
            raise ConfigurationError(
                f"task name {own_name!r} is taken by {known.function!r}: give one of them name=..."
            )
        self.tasks[own_name] = DeclaredTask(spec, function)
        self._declare(spec.declarations())
        self.lines.add(spec.line)
        return spec

    def set_queue(self, kind: str, queue: str, policy: RateLimit | CoDel | Concurrency | None) -> None:
        """Declare a queue's own gate."""
        self.queue_policies[kind, queue] = policy
        self._declare((Declaration(kind, queue, policy),))

    def _declare(self, declarations: Iterable[Declaration]) -> None:
        for declaration in declarations:
            self.undeclared[declaration.kind, declaration.name] = declaration

    def spec(self, name: str) -> TaskSpec:
        """Return a declared task; an undeclared name is a task of another process, with no policies known here."""
        declared = self.tasks.get(name)
        return TaskSpec(name) if declared is None else declared.spec

    def specs(self) -> list[TaskSpec]:
        """Return all declared tasks, each with the policies of its queue, as the simulator takes them."""
        specs = []
        for spec, _ in self.tasks.values():
            codel = self.queue_policies.get(("queue_codel", spec.queue))
            flow = spec.flow if codel is None else Flow(*spec.flow.policies, codel)
            specs.append(TaskSpec(spec.name, spec.queue, flow, spec.priority, spec.signature))
        return specs

    def declarations(self) -> tuple[Declaration, ...]:
        """Return every gate that is declared here, of tasks and of queues."""
        of_tasks = [gate for spec, _ in self.tasks.values() for gate in spec.declarations()]
        of_queues = [
            Declaration(kind, queue, policy) for (kind, queue), policy in self.queue_policies.items()
        ]
        return (*of_tasks, *of_queues)

    def handler(self, name: str) -> Callable[..., Any]:
        """Return a declared task's function."""
        try:
            return self.tasks[name].function
        except KeyError:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTask(
                f"no task {name!r} is declared here (declared: {known}): import its module"
            ) from None

    def options(self, options: Mapping[str, Any]) -> CallOptions:
        """Read the options of one call."""
        if not options:
            return _NO_OPTIONS
        unknown = [name for name in options if name not in CallOptions.__dataclass_fields__]
        if unknown:
            known = ", ".join(sorted(CallOptions.__dataclass_fields__))
            raise TypeError(f"{unknown[0]!r} is not an option of a call; the options are {known}")
        return CallOptions(**options)
