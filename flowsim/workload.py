"""Workloads: the calls that a simulation offers: when they come, for which key, and how long each takes.

A workload is data, drawn or recorded before anything is simulated, and frozen. Every policy that is compared on it
meets the same calls (common random numbers). Synthetic ones are drawn from streams of their seed, one for each
purpose; recorded ones come from a table whose instants are rounded to whole microseconds, and are otherwise left as
they are: what is wrong with a table is said, never repaired in silence.

Arrivals are open-loop: calls come when they come, whatever became of those before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from flowq.errors import ConfigurationError
from flowq.units import Duration, duration_text, duration_us, exact_number, shown
from flowsim.arrivals import Speed, draw_keys, per_second, pieces, poisson_us, speed_text
from flowsim.service import Service, service_of
from flowsim.streams import Floats, Integers, Purpose, stream
from flowsim.table import instants_us, key_labels, read_texts, refuse_missing, seconds_us

__all__ = ["Workload"]

_MOST_CALLS: Final = 50_000_000


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Workload:
    """Calls in the order of their arrival.

    Make one with `poisson`, `bursts`, `mmpp` or `spike`, or read one with `from_frame`, `from_csv` or `from_parquet`.

    Parameters
    ----------
    arrivals_us : array of int64
        Instants in µs since the workload's origin: sorted, >= 0, at least one.
    keys : array of int64 or str, optional
        The key of each call; None: calls without keys. A missing one (None, NaN) is a call without a key.
    service_us : array of int64, optional
        How long each call takes in µs, >= 0; None: drawn by the ``service`` of a simulation.
    name : str
        What captions call it, seed included.

    Raises
    ------
    ConfigurationError
        If the arrays have different lengths or hold what is not legal.

    Examples
    --------
    >>> calls = Workload.poisson("5/s", "1m", seed=1, keys=3)
    >>> calls
    Workload('poisson 5/s, seed 1', 305 calls in 59.3 s, 5.15/s, 3 keys)
    >>> calls.digest() == Workload.poisson("5/s", "1m", seed=1, keys=3).digest()
    True
    """

    arrivals_us: Integers
    keys: NDArray[Any] | None = None
    service_us: Integers | None = None
    name: str = "workload"

    def __post_init__(self) -> None:
        assign = object.__setattr__
        arrivals_us = _whole(self.arrivals_us, "arrivals_us")
        if len(arrivals_us) == 0:
            raise ConfigurationError("workload must have at least one call: it is empty")
        if len(arrivals_us) > _MOST_CALLS:
            raise ConfigurationError(f"workload must have <= {_MOST_CALLS:,} calls: {len(arrivals_us):,}")
        if arrivals_us[0] < 0:
            raise ConfigurationError(f"arrivals must be >= 0: {int(arrivals_us[0])} µs at call 0")
        steps = np.diff(arrivals_us)
        if (steps < 0).any():
            at = int(np.argmax(steps < 0)) + 1
            raise ConfigurationError(f"arrivals must be sorted: call {at} comes before call {at - 1}")
        assign(self, "arrivals_us", arrivals_us)
        if self.keys is not None:
            assign(self, "keys", _same_length(_labels(self.keys), arrivals_us, "keys"))
        if self.service_us is not None:
            service_us = _same_length(_whole(self.service_us, "service_us"), arrivals_us, "service_us")
            if service_us.min() < 0:
                at = int(np.argmax(service_us < 0))
                raise ConfigurationError(f"service must be >= 0: {int(service_us[at])} µs at call {at}")
            assign(self, "service_us", service_us)

    # --- synthetic ---

    @classmethod
    def poisson(
        cls,
        rate: Speed,
        duration: Duration,
        *,
        seed: int = 0,
        keys: int | None = None,
        zipf: float | None = None,
    ) -> Workload:
        """Draw calls that come independently of each other, at a constant rate.

        Parameters
        ----------
        rate : str, float or Rate
            ``"10/s"``, or calls per second.
        duration : duration
            ``"10m"`` or seconds; calls come in [0, duration).
        seed : int
            Whole number >= 0.
        keys : int, optional
            How many keys, named 0, 1, 2 ...; None: calls without keys.
        zipf : float, optional
            Key k is drawn with weight 1 / (k + 1) ** zipf; None: all alike.

        Examples
        --------
        >>> len(Workload.poisson(100, "10s", seed=3))
        1003
        """
        edges_us, rates = pieces([duration_us(duration, "duration")], [per_second(rate)])
        return cls._draw(f"poisson {speed_text(rate)}", edges_us, rates, seed, keys, zipf)

    @classmethod
    def bursts(
        cls,
        rate: Speed,
        duration: Duration,
        *,
        on: Duration,
        off: Duration,
        idle_rate: Speed = 0.0,
        seed: int = 0,
        keys: int | None = None,
        zipf: float | None = None,
    ) -> Workload:
        """Draw calls in bursts: ``on`` at the rate, ``off`` at ``idle_rate``, and again, at fixed times.

        Parameters
        ----------
        rate, idle_rate : str, float or Rate
            Calls per second within a burst, and between bursts (0 allowed).
        duration, on, off : duration
            Of the whole, of a burst and of a pause.
        seed, keys, zipf
            As for `poisson`.

        Examples
        --------
        >>> calls = Workload.bursts("50/s", "1m", on="2s", off="8s")
        >>> bool((calls.arrivals_us % 10_000_000 < 2_000_000).all())
        True
        """
        total_us, on_us, off_us = (
            duration_us(each, name) for each, name in ((duration, "duration"), (on, "on"), (off, "off"))
        )
        cycles = -(-total_us // (on_us + off_us))
        pair = [per_second(rate), per_second(idle_rate, "idle_rate", allow_zero=True)]
        edges_us, rates = pieces([on_us, off_us] * cycles, pair * cycles, total_us)
        name = f"bursts {speed_text(rate)} for {duration_text(on_us)} every {duration_text(on_us + off_us)}"
        return cls._draw(name, edges_us, rates, seed, keys, zipf)

    @classmethod
    def mmpp(
        cls,
        rates: Sequence[Speed],
        stays: Sequence[Duration],
        duration: Duration,
        *,
        seed: int = 0,
        keys: int | None = None,
        zipf: float | None = None,
    ) -> Workload:
        """Draw a Markov-modulated Poisson process: the rate itself changes at random.

        States follow each other in a circle (of two, they alternate); each lasts an exponential time. The first is
        drawn as it is met in the long run.

        Parameters
        ----------
        rates : sequence of str, float or Rate
            Calls per second in each state, 0 allowed.
        stays : sequence of duration
            Mean stay in each state.
        duration : duration
            Of the whole.
        seed, keys, zipf
            As for `poisson`.

        References
        ----------
        Fischer, Meier-Hellstern, The Markov-modulated Poisson process cookbook, 1993.

        Examples
        --------
        >>> Workload.mmpp(["20/s", "1/s"], ["5s", "30s"], "10m", seed=2)
        Workload('mmpp 20/s 1/s, stays 5s 30s, seed 2', 2403 calls in 599 s, 4.01/s)
        """
        total_us = duration_us(duration, "duration")
        speeds = [per_second(rate, "rates", allow_zero=True) for rate in rates]
        means_us = np.array([duration_us(stay, "stays") for stay in stays], dtype=np.float64)
        if len(speeds) != len(means_us) or len(speeds) < 2:
            raise ConfigurationError(
                f"rates and stays must be as many, at least 2: {len(speeds)} and {len(means_us)}"
            )
        rng = stream(seed, Purpose.ARRIVALS)
        state = int(np.searchsorted(np.cumsum(means_us) / means_us.sum(), rng.random(), side="right"))
        lengths_us, path, reached = [], [], 0
        while reached < total_us:
            length_us = max(1, round(rng.exponential(means_us[state])))
            lengths_us.append(length_us)
            path.append(speeds[state])
            reached += length_us
            state = (state + 1) % len(speeds)
        edges_us, drawn = pieces(lengths_us, path, total_us)
        stays_text = " ".join(duration_text(round(mean)) for mean in means_us.tolist())
        name = f"mmpp {' '.join(map(speed_text, rates))}, stays {stays_text}"
        return cls._draw(name, edges_us, drawn, seed, keys, zipf, rng)

    @classmethod
    def spike(
        cls,
        base_rate: Speed,
        spike_rate: Speed,
        duration: Duration,
        *,
        at: Duration,
        length: Duration,
        seed: int = 0,
        keys: int | None = None,
        zipf: float | None = None,
    ) -> Workload:
        """Draw calls at a base rate with one spike: a launch, an incident, a retry storm.

        Parameters
        ----------
        base_rate, spike_rate : str, float or Rate
            Calls per second outside (0 allowed) and inside the spike.
        duration, at, length : duration
            Of the whole; when the spike begins; how long it lasts.
        seed, keys, zipf
            As for `poisson`.

        Examples
        --------
        >>> calls = Workload.spike("5/s", "100/s", "2m", at="30s", length="10s", seed=4)
        >>> spike = (calls.arrivals_us >= 30_000_000) & (calls.arrivals_us < 40_000_000)
        >>> int(spike.sum()), int((~spike).sum())
        (999, 559)
        """
        total_us = duration_us(duration, "duration")
        at_us = duration_us(at, "at", allow_zero=True)
        length_us = duration_us(length, "length")
        if at_us + length_us > total_us:
            raise ConfigurationError(
                f"at + length must be <= duration {duration_text(total_us)}: {duration_text(at_us + length_us)}"
            )
        base = per_second(base_rate, "base_rate", allow_zero=True)
        parts_us = [at_us, length_us, total_us - at_us - length_us]
        edges_us, rates = pieces(parts_us, [base, per_second(spike_rate, "spike_rate"), base])
        name = f"{speed_text(base_rate)}, spike {speed_text(spike_rate)} for {duration_text(length_us)} at {duration_text(at_us)}"
        return cls._draw(name, edges_us, rates, seed, keys, zipf)

    @classmethod
    def _draw(
        cls,
        name: str,
        edges_us: Integers,
        rates: Floats,
        seed: int,
        keys: int | None,
        zipf: float | None,
        rng: np.random.Generator | None = None,
    ) -> Workload:
        arrivals_us = poisson_us(stream(seed, Purpose.ARRIVALS) if rng is None else rng, edges_us, rates)
        if len(arrivals_us) == 0:
            raise ConfigurationError(
                f"workload must have at least one call: none came in {name}, seed {seed}"
            )
        return cls(arrivals_us, draw_keys(keys, zipf, seed, len(arrivals_us)), None, f"{name}, seed {seed}")

    # --- recorded ---

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        time: str = "t_s",
        key: str | None = None,
        service: str | None = None,
        name: str = "table",
        epoch: str | None = None,
    ) -> Workload:
        """Take recorded calls from a DataFrame.

        Parameters
        ----------
        frame : DataFrame
            One row a call, sorted by ``time``.
        time : str
            Column of arrivals: seconds >= 0 since some origin, or datetimes (the origin is then the first).
        key : str, optional
            Column of keys: whole numbers or text, kept as they are; a missing value is a call without a key. A number
            and a text that read alike (7 and ``"7"``) are refused: a service couldn't tell them apart.
        service : str, optional
            Column of service times in seconds, >= 0.
        name : str
            For captions.
        epoch : {"s", "ms", "us", "ns"}, optional
            ``time`` holds numbers of this unit since 1970; the origin is then the first.

        Raises
        ------
        ConfigurationError
            If a column is missing, or holds what is not legal; the message names the first such row.

        Examples
        --------
        >>> frame = pd.DataFrame({"t_s": [0.0, 0.5, 2.0], "user": [7, 7, 9], "took": [1.0, 1.5, 0.2]})
        >>> Workload.from_frame(frame, key="user", service="took", name="three")
        Workload('three', 3 calls in 2 s, 1.5/s, 2 keys, service times)
        """
        refuse_missing(frame, time, key, service)
        if len(frame) == 0:
            raise ConfigurationError("table must have at least one row: it is empty")
        arrivals_us = instants_us(frame[time], time, epoch)
        keys = None if key is None else key_labels(frame[key], key)
        service_us = None if service is None else seconds_us(frame[service], service)
        return cls(arrivals_us, keys, service_us, name)

    @classmethod
    def from_csv(
        cls,
        path: str | PathLike[str],
        *,
        time: str = "t_s",
        key: str | None = None,
        service: str | None = None,
        name: str | None = None,
        epoch: str | None = None,
    ) -> Workload:
        """Read recorded calls from a CSV file with a header, compressed or not; parameters as for `from_frame`.

        Keys are text, always: ``007``, ``7`` and ``NA`` are three keys, and only an empty field is a call without one.
        Instants are seconds, ISO 8601 (with a zone in every row, or in none), or numbers since an ``epoch``.

        Examples
        --------
        >>> Workload.from_csv("calls.csv.gz", key="user")  # doctest: +SKIP
        Workload('calls', 12886 calls in 8.64e+05 s, 0.0149/s, 2204 keys)
        """
        try:
            head = pd.read_csv(path, nrows=0)
        except pd.errors.EmptyDataError:
            raise ConfigurationError(
                f"{path} must have a header and at least one call: it is empty"
            ) from None
        refuse_missing(head, time, key, service, table=str(path))
        columns = sorted({column for column in (time, key, service) if column is not None})
        frame = pd.read_csv(path, usecols=columns, dtype=str, keep_default_na=False, na_values=[""])
        for column in {time, service} - {None, key}:
            frame[column] = read_texts(frame[column], str(column))
        return cls.from_frame(
            frame, time=time, key=key, service=service, name=name or _stem(path), epoch=epoch
        )

    @classmethod
    def from_parquet(
        cls,
        path: str | PathLike[str],
        *,
        time: str = "t_s",
        key: str | None = None,
        service: str | None = None,
        name: str | None = None,
    ) -> Workload:
        """Read recorded calls from a Parquet file; parameters as for `from_frame`. Needs the extra ``parquet``.

        Examples
        --------
        >>> Workload.from_parquet("calls.parquet", time="arrived_at")  # doctest: +SKIP
        Workload('calls', 19366 calls in 3.5e+03 s, 5.53/s)
        """
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ImportError("from_parquet needs pyarrow: pip install 'flowq-kit[parquet]'") from None
        return cls.from_frame(
            pd.read_parquet(path), time=time, key=key, service=service, name=name or _stem(path)
        )

    # --- derived ---

    def cut(self, start: Duration, end: Duration) -> Workload:
        """Return the calls of [start, end), with ``start`` as the new origin.

        Examples
        --------
        >>> Workload.poisson("5/s", "1h", seed=1).cut("10m", "11m")
        Workload('poisson 5/s, seed 1 [10m:11m]', 272 calls in 59.4 s, 4.58/s)
        """
        start_us, end_us = duration_us(start, "start", allow_zero=True), duration_us(end, "end")
        if end_us <= start_us:
            raise ConfigurationError(
                f"end must be > start {duration_text(start_us)}: {duration_text(end_us)}"
            )
        first, last = np.searchsorted(self.arrivals_us, [start_us, end_us])
        name = f"{self.name} [{duration_text(start_us)}:{duration_text(end_us)}]"
        if first == last:
            raise ConfigurationError(f"workload must have at least one call: {name} is empty")
        return Workload(
            self.arrivals_us[first:last] - start_us,
            None if self.keys is None else self.keys[first:last],
            None if self.service_us is None else self.service_us[first:last],
            name,
        )

    def scaled(self, speed: float) -> Workload:
        """Return the same calls, ``speed`` times as fast: 2 halves every gap; service times stay.

        Examples
        --------
        >>> Workload.poisson("5/s", "1m", seed=1).scaled(2)
        Workload('poisson 5/s, seed 1, 2 times as fast', 305 calls in 29.6 s, 10.3/s)
        """
        factor = exact_number(speed, "speed")
        if factor <= 0:
            raise ConfigurationError(f"speed must be > 0: {shown(speed)}")
        arrivals_us = np.rint(self.arrivals_us / float(factor)).astype(np.int64)
        return replace(self, arrivals_us=arrivals_us, name=f"{self.name}, {speed} times as fast")

    def with_service(self, service: Any, seed: int = 0) -> Workload:
        """Return the same calls with service times drawn for each.

        Parameters
        ----------
        service : Service, duration or frozen scipy distribution
            See `flowsim.service.service_of`.
        seed : int
            Of the stream of service times.

        Examples
        --------
        >>> Workload.poisson("5/s", "1m").with_service("20ms").service_us[:2].tolist()
        [20000, 20000]
        """
        chosen: Service = service_of(service)
        return replace(self, service_us=chosen.draw_us(stream(seed, Purpose.SERVICE), len(self)))

    # --- facts ---

    def __len__(self) -> int:
        return len(self.arrivals_us)

    @property
    def span_s(self) -> float:
        """Seconds from the first call to the last."""
        return int(self.arrivals_us[-1] - self.arrivals_us[0]) / 1e6

    @property
    def mean_rate(self) -> float:
        """Calls per second: their number over the span from first to last; NaN if that is 0."""
        return len(self) / self.span_s if self.span_s > 0 else float("nan")

    def zero_wait_burst(self, rate: Speed) -> float:
        """Return the bucket with which a rate limit would delay no call of this workload.

        The largest excess of calls over tokens in any span: max over i <= j of (j - i + 1) - rate * (t_j - t_i). It
        may be fractional, as a burst may; >= 1. With a smaller burst b, and workers enough, the longest wait is
        (this - b) / rate.

        Examples
        --------
        >>> Workload(np.array([0, 0, 0, 1_000_000, 1_000_000])).zero_wait_burst("1/s")
        4.0
        """
        excess = np.arange(len(self)) - per_second(rate) * (self.arrivals_us - self.arrivals_us[0]) / 1e6
        return float((excess - np.minimum.accumulate(excess)).max()) + 1.0

    def frame(self) -> pd.DataFrame:
        """Return one row a call: ``call``, ``arrival_s``, and ``key``, ``service_s`` where there are any."""
        columns: dict[str, Any] = {"call": np.arange(len(self)), "arrival_s": self.arrivals_us / 1e6}
        if self.keys is not None:
            columns["key"] = self.keys
        if self.service_us is not None:
            columns["service_s"] = self.service_us / 1e6
        return pd.DataFrame(columns)

    def digest(self) -> str:
        """Return a fingerprint of all that is in it, the name excepted: equal workloads have equal digests."""
        sha = hashlib.sha256(self.arrivals_us.astype("<i8").tobytes())
        if self.keys is not None:
            sha.update(b"keys" + "\x00".join(map(repr, self.keys.tolist())).encode())
        if self.service_us is not None:
            sha.update(b"service" + self.service_us.astype("<i8").tobytes())
        return sha.hexdigest()[:16]

    def __repr__(self) -> str:
        speed = f", {self.mean_rate:.3g}/s" if self.span_s > 0 else ""
        keys = "" if self.keys is None else f", {pd.Series(self.keys).nunique()} keys"
        service = "" if self.service_us is None else ", service times"
        return f"Workload({self.name!r}, {len(self)} calls in {self.span_s:.3g} s{speed}{keys}{service})"


# --- checks ------------------------------------------------------------------------------------------------------


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _whole(values: ArrayLike, name: str) -> Integers:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be a list of whole numbers: {array.ndim} dimensions of {array.dtype}")
    return _frozen(array.astype(np.int64))


def _labels(values: ArrayLike) -> NDArray[Any]:
    """Keys as whole numbers if they all are, else as objects: text, whole numbers, and None where one is missing."""
    array = values if isinstance(values, np.ndarray) else np.asarray(values, dtype=object)
    if array.ndim != 1:
        raise TypeError(f"keys must be a list: {array.ndim} dimensions")
    if array.dtype.kind in "iu":
        return _frozen(array.astype(np.int64))
    objects = np.empty(len(array), dtype=object)
    kinds = set()
    for index, value in enumerate(array.tolist()):
        if value is None or value is pd.NA or value != value:
            objects[index] = None
        elif isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            objects[index] = value
            kinds.add(type(value))
        else:
            raise ConfigurationError(f"keys must be text or whole numbers: {shown(value)} at call {index}")
    if kinds == {int}:
        return _frozen(objects if None in objects else objects.astype(np.int64))
    if len(kinds) > 1:
        texts = {value for value in objects if isinstance(value, str)}
        alike = [value for value in objects if isinstance(value, int) and str(value) in texts]
        if alike:
            raise ConfigurationError(
                f"keys must differ as text: {alike[0]} and {str(alike[0])!r} are both there; make them one type"
            )
    return _frozen(objects)


def _same_length(array: NDArray[Any], arrivals_us: Integers, name: str) -> NDArray[Any]:
    if len(array) != len(arrivals_us):
        raise ConfigurationError(f"{name} must be as many as arrivals {len(arrivals_us)}: {len(array)}")
    return array


def _stem(path: str | PathLike[str]) -> str:
    return Path(path).name.partition(".")[0]
