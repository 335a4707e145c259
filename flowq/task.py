"""A declared task: its name, queue, flow and signature, and how one call becomes a request.

This is where the decorator's keywords and a call's options meet. It is pure: the simulator makes its requests here
too, from recorded keys instead of arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from flowq.errors import ConfigurationError
from flowq.payload import arguments_text, json_text
from flowq.policy import Debounce, Flow, KeyTemplate, argument_key
from flowq.programs import Declaration, Request, key_hash
from flowq.programs.commands import NewJob
from flowq.units import checked_key, duration_us, flag, instant_us, whole_number

__all__ = ["UNSET", "CallOptions", "TaskSpec"]

Duration = str | float | timedelta


class _Unset(Enum):
    """The type of :data:`UNSET`, so that None and False stay values of their own."""

    UNSET = "unset"


UNSET: Final = _Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """The options of one call; what is unset is as the task declares.

    Parameters
    ----------
    queue, priority, max_retries
        Replace the task's. Priority: higher first. ``max_retries=0`` means one attempt.
    delay, run_at
        When the job becomes eligible: a duration from now (0 is now), or an aware datetime. Not both.
    unique_key, idempotent
        Coalesce on this key, or (True) on one derived from the arguments; ``idempotent=False`` turns the task's
        derivation off (rule C5).
    debounce, debounce_key, debounce_max_wait, debounce_replace_payload
        Together define the whole debounce of this call (rule B6); ``debounce=False`` switches the task's off.
        ``debounce_replace_payload`` alone keeps the task's window.
    cost
        Tokens that a start takes, >= 1 and at most the burst (rule R7).
    metadata
        JSON-able mapping kept with the job.
    """

    queue: str | _Unset = UNSET
    priority: int | _Unset = UNSET
    max_retries: int | _Unset = UNSET
    delay: Duration | _Unset = UNSET
    run_at: datetime | _Unset = UNSET
    unique_key: str | _Unset = UNSET
    idempotent: bool | _Unset = UNSET
    debounce: Duration | bool | _Unset = UNSET
    debounce_key: str | _Unset = UNSET
    debounce_max_wait: Duration | _Unset = UNSET
    debounce_replace_payload: bool | _Unset = UNSET
    cost: int = 1
    metadata: Mapping[str, Any] | None = None


_PLAIN = CallOptions()


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A declared task, without its function: what a call needs to become a job.

    Parameters
    ----------
    name
        The task's name, its identity in buckets and keys.
    queue
        Where its jobs wait.
    flow
        Its policies. A ``CoDel`` in it is that of its queue.
    priority
        Higher first, any 32-bit integer.
    signature
        Of the handler: for key templates and derived keys. None: called by name only; any arguments are taken.

    Examples
    --------
    >>> from flowq.policy import Coalesce
    >>> spec = TaskSpec("charge", flow=Flow(Coalesce()))
    >>> spec.keyed_request("42").job.key
    '42'
    """

    name: str
    queue: str = "default"
    flow: Flow = field(default_factory=Flow)
    priority: int = 0
    signature: inspect.Signature | None = None
    _arity: tuple[int, int] | None = field(init=False, repr=False, compare=False, default=None)
    """How few and how many positional arguments make a whole call, where counting them is enough."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_arity", _arity(self.signature))
        checked_key(self.name, "task name")
        checked_key(self.queue, "queue")
        _checked_priority(self.priority)
        if self.flow.debounce is not None:
            KeyTemplate.parse(self.flow.debounce.key, self.signature)
        if self.flow.coalesce is not None and self.flow.coalesce.key is not None:
            KeyTemplate.parse(self.flow.coalesce.key, self.signature)

    @property
    def line(self) -> tuple[str, str, int]:
        """(queue, task, priority): where its jobs wait unless a call says otherwise."""
        return (self.queue, self.name, self.priority)

    def declarations(self) -> tuple[Declaration, ...]:
        """Return the gates of the task (and, for a ``CoDel``, of its queue)."""
        own = (
            Declaration("task_rate", self.name, self.flow.rate_limit),
            Declaration("task_concurrency", self.name, self.flow.concurrency),
        )
        if self.flow.codel is None:
            return own
        return (*own, Declaration("queue_codel", self.queue, self.flow.codel))

    def keyed_request(self, key: str | None = None, namespace: str = "default") -> Request:
        """Make the request of a call whose rendered key is known, as a recorded trace gives it."""
        flow = self.flow
        if key is None or (flow.coalesce is None and flow.debounce is None):
            return Request(NewJob(self.queue, self.name, self.priority, key=key))
        if flow.debounce is not None:
            hashed = key_hash("keyed", namespace, self.name, "", key)
            return Request(
                NewJob(self.queue, self.name, self.priority, key=key, window_hash=hashed), flow.debounce
            )
        hashed = key_hash("unique", namespace, self.name, "", key)
        return Request(NewJob(self.queue, self.name, self.priority, key=key, unique_hash=hashed))

    def request(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: CallOptions = _PLAIN,
        namespace: str = "default",
    ) -> Request:
        """Resolve one call.

        Raises
        ------
        ConfigurationError
            Options that exclude each other, or a value outside its range; names it and the remedy.
        KeyTemplateError
            A placeholder that resolves to nothing (rule K2).
        PayloadError
            Arguments that JSON can't carry.
        TypeError
            Arguments that the task's signature does not take.
        """
        kwargs = kwargs or {}
        arity = self._arity
        counted = arity is not None and not kwargs and arity[0] <= len(args) <= arity[1]
        if self.signature is not None and not counted:
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"task {self.name!r}{self.signature}: {error}") from None
        job = self._job(args, kwargs, options)
        debounce = self._debounce(options)
        unique = self._unique_key(args, kwargs, options)
        if debounce is not None:
            self._check_debounced(options, unique is not None)
            template = KeyTemplate.parse(debounce.key, self.signature)
            key = checked_key(template.render(args, kwargs), "debounce_key")
            hashed = key_hash("keyed", namespace, self.name, "", key)
            return Request(job._replace(key=key, window_hash=hashed), debounce)
        if unique is not None:
            return Request(
                job._replace(key=unique, unique_hash=key_hash("unique", namespace, self.name, "", unique))
            )
        return Request(job)

    def _job(self, args: Sequence[Any], kwargs: Mapping[str, Any], options: CallOptions) -> NewJob:
        cost = whole_number(options.cost, "cost", 1, 2**31 - 1)
        if self.flow.rate_limit is not None:
            self.flow.rate_limit.check_cost(cost)
        if options.delay is not UNSET and options.run_at is not UNSET:
            raise ConfigurationError("delay and run_at can't both be given: say one instant, by one of them")
        max_retries = None
        if options.max_retries is not UNSET:
            max_retries = whole_number(options.max_retries, "max_retries", 0, 10_000)
        return NewJob(
            queue=self.queue if options.queue is UNSET else checked_key(options.queue, "queue"),
            task=self.name,
            priority=self.priority if options.priority is UNSET else _checked_priority(options.priority),
            payload=arguments_text(args, kwargs),
            run_at_us=None if options.run_at is UNSET else instant_us(options.run_at, "run_at"),
            delay_us=0 if options.delay is UNSET else duration_us(options.delay, "delay", allow_zero=True),
            cost=cost,
            max_retries=max_retries,
            metadata=None if options.metadata is None else json_text(dict(options.metadata), "metadata"),
        )

    def _debounce(self, options: CallOptions) -> Debounce | None:
        """The call's debounce: the declared one, none, or a whole one of its own (rule B6)."""
        declared = self.flow.debounce
        window, key, max_wait = options.debounce, options.debounce_key, options.debounce_max_wait
        replace = options.debounce_replace_payload
        if window is False:
            if key is not UNSET or max_wait is not UNSET or replace is not UNSET:
                raise ConfigurationError(
                    "debounce=False switches debounce off: drop the call's other debounce options"
                )
            return None
        if window is UNSET and key is UNSET and max_wait is UNSET:
            if replace is UNSET:
                return declared
            if declared is None:
                raise ConfigurationError(
                    "debounce_replace_payload needs a window: give debounce, debounce_key and debounce_max_wait too"
                )
            return Debounce(declared.window_us / 1e6, declared.key, declared.max_wait_us / 1e6, replace)
        return Debounce(
            None if window is UNSET else window,
            None if key is UNSET else key,
            None if max_wait is UNSET else max_wait,
            False if replace is UNSET else replace,
        )

    def _unique_key(self, args: Sequence[Any], kwargs: Mapping[str, Any], options: CallOptions) -> str | None:
        """The call's coalescing key: an explicit one wins over the declared (rule C5)."""
        if options.unique_key is not UNSET:
            return checked_key(options.unique_key, "unique_key")
        declared = self.flow.coalesce
        idempotent = None if options.idempotent is UNSET else flag(options.idempotent, "idempotent")
        if idempotent is False:
            return None
        if idempotent is True or (declared is not None and declared.key is None):
            return argument_key(self.name, self.signature, args, kwargs)
        if declared is not None and declared.key is not None:
            return checked_key(
                KeyTemplate.parse(declared.key, self.signature).render(args, kwargs), "unique key"
            )
        return None

    @staticmethod
    def _check_debounced(options: CallOptions, unique: bool) -> None:
        """Refuse what can't go with debounce, and say why (rule B7)."""
        if unique:
            raise ConfigurationError(
                "debounce and a unique key can't both hold a call: one moves the job, the other lets nothing move; "
                "pass idempotent=False or debounce=False"
            )
        if options.delay is not UNSET or options.run_at is not UNSET:
            raise ConfigurationError(
                "debounce sets the run time itself: drop delay or run_at, or pass debounce=False"
            )


def _checked_priority(priority: Any) -> int:
    return whole_number(priority, "priority", -(2**31), 2**31 - 1)


def _arity(signature: inspect.Signature | None) -> tuple[int, int] | None:
    """The bounds of positional arguments, None where some must be given by name."""
    if signature is None:
        return None
    parameters = signature.parameters.values()
    if any(each.kind is each.KEYWORD_ONLY and each.default is each.empty for each in parameters):
        return None
    positional = [
        each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    return sum(each.default is each.empty for each in positional), len(positional)
