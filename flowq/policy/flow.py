"""A flow: the policies of one task or queue, the object carried from notebook to production.

Its `repr` evaluates back to it, it stores as JSON, and a simulation and a service take the very same value.
The order in which policies *act* is fixed by the rules, not by how a flow is written: first what decides
whether a call becomes a job (coalesce, debounce), then what decides whether a due job starts (rate limit and
concurrency, then CoDel), then what follows a failure (retry). A flow keeps its policies in that order, so two flows of the
same policies are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from flowq.errors import ConfigurationError
from flowq.policy.coalesce import Coalesce
from flowq.policy.codel import CoDel
from flowq.policy.concurrency import Concurrency
from flowq.policy.debounce import Debounce
from flowq.policy.rate_limit import RateLimit
from flowq.policy.retry import Retry
from flowq.units import shown

__all__ = ["Flow", "Policy"]

Policy: TypeAlias = Coalesce | Debounce | RateLimit | Concurrency | CoDel | Retry

_P = TypeVar("_P", Coalesce, Debounce, RateLimit, Concurrency, CoDel, Retry)

# The kinds in the order in which they act.
_KINDS: Final[tuple[type[Policy], ...]] = (Coalesce, Debounce, RateLimit, Concurrency, CoDel, Retry)
_BY_TAG: Final[dict[str, type[Policy]]] = {kind.policy: kind for kind in _KINDS}

_REFUSED: Final[tuple[tuple[type[Policy], type[Policy], str], ...]] = (
    (
        Coalesce,
        Debounce,
        "a coalesced call moves nothing, so the deadline would never slide,"
        " and a call during the run would be lost",
    ),
)


class Flow:
    """The policies of one task or queue, at most one of each kind; ``Flow()`` is no control at all.

    Use it to say once how work flows, and hand the same object to a simulation, a task's declaration or a
    queue.

    Parameters
    ----------
    *policies : Coalesce, Debounce, RateLimit, Concurrency, CoDel or Retry
        In any order; they act in the order given in the module's text.

    Attributes
    ----------
    policies : tuple
        In the order in which they act.
    coalesce, debounce, rate_limit, concurrency, codel, retry
        The policy of that kind, or None.

    Raises
    ------
    TypeError
        If a value is no policy.
    ConfigurationError
        If a kind comes twice, or two kinds exclude each other; the message says why.

    Examples
    --------
    >>> flow = Flow(CoDel("100ms", "1s", law="slough"), RateLimit("10/s", burst=5))
    >>> flow
    Flow(RateLimit('10/s', burst=5), CoDel('100ms', '1s', law='slough'))
    >>> Flow.from_json(flow.to_json()) == eval(repr(flow)) == flow
    True
    >>> print(flow.describe())
    at most 10/s, burst 5; shed while the wait stays above 100ms for 1s (slough)
    """

    __slots__ = ("policies",)

    policies: tuple[Policy, ...]

    def __init__(self, *policies: Policy) -> None:
        by_kind: dict[type[Policy], Policy] = {}
        for policy in policies:
            kind = type(policy)
            if kind not in _KINDS:
                names = ", ".join(known.__name__ for known in _KINDS)
                raise TypeError(f"flow must hold policies ({names}): {shown(policy)}")
            if kind in by_kind:
                raise ConfigurationError(
                    f"flow must hold at most one {kind.__name__}: {by_kind[kind]}, {policy}"
                )
            by_kind[kind] = policy
        for one, other, why in _REFUSED:
            if one in by_kind and other in by_kind:
                raise ConfigurationError(
                    f"flow must not hold both {one.__name__} and {other.__name__}: {why}; keep one of them"
                )
        object.__setattr__(self, "policies", tuple(by_kind[kind] for kind in _KINDS if kind in by_kind))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Flow is frozen: {name}; make a new one, as in flow.replace(...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a Flow is frozen: {name}")

    def __reduce__(self) -> tuple[type[Flow], tuple[Policy, ...]]:
        return Flow, self.policies

    def __repr__(self) -> str:
        return f"Flow({', '.join(map(repr, self.policies))})"

    def __eq__(self, other: object) -> bool:
        return self.policies == other.policies if isinstance(other, Flow) else NotImplemented

    def __hash__(self) -> int:
        return hash((Flow, self.policies))

    def __iter__(self) -> Iterator[Policy]:
        return iter(self.policies)

    def __len__(self) -> int:
        return len(self.policies)

    def _find(self, kind: type[_P]) -> _P | None:
        for policy in self.policies:
            if isinstance(policy, kind):
                return policy
        return None

    @property
    def coalesce(self) -> Coalesce | None:
        """The `Coalesce`, or None."""
        return self._find(Coalesce)

    @property
    def debounce(self) -> Debounce | None:
        """The `Debounce`, or None."""
        return self._find(Debounce)

    @property
    def rate_limit(self) -> RateLimit | None:
        """The `RateLimit`, or None."""
        return self._find(RateLimit)

    @property
    def concurrency(self) -> Concurrency | None:
        """The `Concurrency`, or None."""
        return self._find(Concurrency)

    @property
    def codel(self) -> CoDel | None:
        """The `CoDel`, or None."""
        return self._find(CoDel)

    @property
    def retry(self) -> Retry | None:
        """The `Retry`, or None."""
        return self._find(Retry)

    def replace(self, *policies: Policy) -> Flow:
        """Return a flow in which these policies stand instead of those of the same kind, or join them.

        >>> Flow(RateLimit("10/s"), Retry(5)).replace(RateLimit("20/s"))
        Flow(RateLimit('20/s'), Retry(max_retries=5))
        """
        kinds = {type(policy) for policy in policies}
        return Flow(*(policy for policy in self.policies if type(policy) not in kinds), *policies)

    def without(self, *kinds: type[Policy]) -> Flow:
        """Return the flow without the policies of these kinds.

        >>> Flow(RateLimit("10/s"), Retry(5)).without(Retry)
        Flow(RateLimit('10/s'))
        """
        return Flow(*(policy for policy in self.policies if type(policy) not in kinds))

    def describe(self) -> str:
        """Return the flow in a line of words."""
        return "; ".join(policy.describe() for policy in self.policies) or "no control"

    def to_json(self) -> dict[str, Any]:
        """Return the flow as a JSON object: ``{"policies": [{"policy": "rate_limit", ...}, ...]}``."""
        return {"policies": [policy.to_json() for policy in self.policies]}

    @classmethod
    def from_json(cls, data: object) -> Flow:
        """Return the flow that `to_json` wrote.

        Raises
        ------
        ConfigurationError
            If a tag is unknown, or a value is not legal.
        """
        entries = data.get("policies") if isinstance(data, Mapping) else None
        if not isinstance(entries, list):
            raise ConfigurationError(f"stored flow must be an object with a list of policies: {shown(data)}")
        policies = []
        for entry in entries:
            tag = entry.get("policy") if isinstance(entry, Mapping) else entry
            kind = _BY_TAG.get(tag) if isinstance(tag, str) else None
            if kind is None or not isinstance(entry, Mapping):
                raise ConfigurationError(f"policy must be one of {', '.join(_BY_TAG)}: {shown(tag)}")
            policies.append(kind.from_json(entry))
        return cls(*policies)
