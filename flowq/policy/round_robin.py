"""Smooth weighted round robin: which queue serves the next start.

Every queue that has a waiting job gains its weight in credit; the one with the most credit is picked and pays
the sum of what was gained. Over time each gets its share, evenly interleaved rather than in runs, and a busy
queue never starves another. A queue without a waiting job neither gains nor pays, so idleness is not saved up
without bound.

Weights 5, 1, 1 give a a b a c a a; ties go to the lesser name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowq.errors import ConfigurationError

__all__ = ["phase", "pick"]


def pick(
    state: Mapping[str, int], weights: Mapping[str, int], candidates: Iterable[str]
) -> tuple[dict[str, int], str]:
    """Pick the queue of one start (rule A5).

    Parameters
    ----------
    state : mapping of str to int
        The credits before; a queue not named has none. ``{}`` at first, or see `phase`.
    weights : mapping of str to int
        Whole numbers >= 1; a queue not named weighs 1.
    candidates : iterable of str
        The queues that have a waiting job, in any order; at least one.

    Returns
    -------
    (dict, str)
        The credits after, and the queue. `state` itself is not touched.

    Raises
    ------
    ConfigurationError
        If there is no candidate.

    References
    ----------
    nginx, ``ngx_http_upstream_round_robin.c`` (smooth weighted balancing).

    Examples
    --------
    >>> state, order = {}, ""
    >>> for _ in range(7):
    ...     state, name = pick(state, {"a": 5}, ("a", "b", "c"))
    ...     order += name
    >>> order
    'aabacaa'
    """
    after = dict(state)
    total = 0
    best = None
    best_credit = 0
    for name in sorted(set(candidates)):
        weight = weights.get(name, 1)
        total += weight
        credit = after[name] = after.get(name, 0) + weight
        if best is None or credit > best_credit:
            best, best_credit = name, credit
    if best is None:
        raise ConfigurationError("candidates must not be empty: pick a queue only when one has a waiting job")
    after[best] = best_credit - total
    return after, best


def phase(weights: Mapping[str, int], queues: Iterable[str], u: float) -> dict[str, int]:
    """Return the state of a worker that starts at a drawn phase of the cycle.

    Many workers that all start at the head of the cycle would favour the first queue together.

    Parameters
    ----------
    weights : mapping of str to int
        As for `pick`.
    queues : iterable of str
        The worker's queues.
    u : float
        The drawn number, in [0, 1).

    Examples
    --------
    >>> phase({}, ("a", "b"), 0.0), phase({}, ("a", "b"), 0.5)
    ({}, {'a': -1, 'b': 1})
    """
    names = sorted(set(queues))
    state: dict[str, int] = {}
    for _ in range(int(u * sum(weights.get(name, 1) for name in names))):
        state, _name = pick(state, weights, names)
    return state
