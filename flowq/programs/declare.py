"""Declare the gates of tasks and queues: the newest declaration wins once.

A declaration's version is the store's clock when its process declared it first. The process keeps that version, so
that declaring again later, as an old process does, never flips a newer limit back (rules R5, R8). A changed limit
keeps its level; the time before the change is credited at the old rate.

Rules: R5, T8.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowq.policy.codel import CoDel
from flowq.policy.concurrency import Concurrency
from flowq.policy.rate_limit import RateLimit
from flowq.programs.commands import Declared, GateWrite, LockDeclared, Program, Round, StoredGate, WriteGates

__all__ = ["Declaration", "declare"]


class Declaration(NamedTuple):
    """A gate that a process wants: ``policy`` None declares that there is none."""

    kind: str
    """``task_rate``, ``queue_rate``, ``task_concurrency``, ``queue_concurrency`` or ``queue_codel``."""
    name: str
    policy: RateLimit | CoDel | Concurrency | None


def declare(
    declarations: Sequence[Declaration],
    *,
    lines: Sequence[tuple[str, str, int]] = (),
    version_us: int | None = None,
) -> Program[int]:
    """Store declarations; return their version, to be given when the same process declares them again.

    Parameters
    ----------
    declarations
        At most one for each (kind, name).
    lines
        ``(queue, task, priority)`` that this process will enqueue to: made ready, so that enqueues needn't.
    version_us
        None: the store's clock, that is "newer than all before".
    """
    keys = tuple(sorted((d.kind, d.name) for d in declarations))
    queues = {queue for queue, _, _ in lines} | {d.name for d in declarations if d.kind.startswith("queue_")}
    command = LockDeclared(tuple(sorted(queues)), tuple(sorted(set(lines))), keys)
    [reply] = yield Round((command,), False)
    declared: Declared = reply
    version = version_us
    if version is None:
        version = max((stored.declared_us + 1 for stored in declared.gates.values()), default=0)
        version = max(version, declared.now_us)
    writes = []
    for declaration in sorted(declarations, key=lambda d: (d.kind, d.name)):
        write = _judge(
            declaration, declared.gates.get((declaration.kind, declaration.name)), version, declared.now_us
        )
        if write is not None:
            writes.append(write)
    yield Round((WriteGates(tuple(writes)),) if writes else (), True)
    return version


def _judge(
    declaration: Declaration, stored: StoredGate | None, version_us: int, now_us: int
) -> GateWrite | None:
    """The write that a declaration comes to; None if it changes nothing or a newer one stands."""
    kind, name, policy = declaration
    if stored is None:
        if policy is None:
            return None
    elif stored.declared_us >= version_us:
        return None
    params = None if policy is None else policy.to_json()
    if stored is not None and stored.params == params:
        # The same declaration by a newer process: only its version counts from now on.
        return GateWrite(
            kind, name, version_us, params, stored.state, now_us if params else 0, _drops(policy)
        )
    state: Sequence[Any] | None = None
    wake_us = 0
    if isinstance(policy, RateLimit):
        bucket = policy.initial(now_us)
        if stored is not None and stored.params is not None:
            old = RateLimit.from_json(stored.params)
            before = old.initial(now_us) if stored.state is None else old.state_from_json(stored.state)
            bucket = policy.rebase(old, before, now_us)
        state = policy.state_to_json(bucket)
        wake_us = policy.opens_at_us(bucket, 1, now_us)
    elif isinstance(policy, CoDel) and stored is not None and stored.params is not None:
        old_codel = CoDel.from_json(stored.params)
        if old_codel.law == policy.law:
            state = stored.state
    return GateWrite(kind, name, version_us, params, state, wake_us, _drops(policy))


def _drops(policy: RateLimit | CoDel | Concurrency | None) -> bool:
    return isinstance(policy, RateLimit) and policy.on_excess == "drop"
