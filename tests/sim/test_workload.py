"""Workloads: drawn from streams of a seed, or recorded and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from flowq.errors import ConfigurationError
from flowsim import Workload, constant, exponential, lognormal, t_interval
from flowsim.service import service_of
from flowsim.streams import Purpose, seeds, stream

DRAWN = {
    "poisson": lambda **more: Workload.poisson("20/s", "1m", **more),
    "bursts": lambda **more: Workload.bursts("50/s", "1m", on="2s", off="8s", **more),
    "mmpp": lambda **more: Workload.mmpp(["30/s", "2/s"], ["3s", "6s"], "1m", **more),
    "spike": lambda **more: Workload.spike("5/s", "80/s", "1m", at="20s", length="5s", **more),
}
drawn = pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)


@drawn
def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(draw: Any) -> None:
    assert draw(seed=3, keys=5).digest() == draw(seed=3, keys=5).digest()
    assert draw(seed=3, keys=5).digest() != draw(seed=4, keys=5).digest()


@drawn
def test_arrivals_do_not_depend_on_keys_nor_on_service(draw: Any) -> None:
    plain = draw(seed=3)
    for other in (draw(seed=3, keys=9), draw(seed=3, keys=9, zipf=1.0), plain.with_service("5ms", seed=3)):
        assert np.array_equal(plain.arrivals_us, other.arrivals_us)


@drawn
def test_arrivals_are_whole_sorted_and_within_the_duration(draw: Any) -> None:
    arrivals_us = draw(seed=1).arrivals_us
    assert arrivals_us.dtype == np.int64
    assert (np.diff(arrivals_us) >= 0).all()
    assert arrivals_us[0] >= 0
    assert arrivals_us[-1] < 60_000_000
    with pytest.raises(ValueError, match="read-only"):
        arrivals_us[0] = 1


def test_poisson_gaps_are_exponential_and_counts_have_their_mean() -> None:
    gaps_s = np.diff(Workload.poisson("50/s", "20m", seed=5).arrivals_us) / 1e6
    assert stats.kstest(gaps_s, "expon", args=(0, 1 / 50)).pvalue > 1e-4
    counts = [len(Workload.poisson("50/s", "10s", seed=seed)) for seed in seeds(8, 100)]
    assert t_interval(counts).distance(500) < 4


def test_the_rate_follows_its_pieces() -> None:
    spike = Workload.spike("10/s", "200/s", "10m", at="4m", length="2m", seed=2).arrivals_us
    inside = ((spike >= 240_000_000) & (spike < 360_000_000)).sum()
    assert abs(inside - 24_000) < 4 * 24_000**0.5
    assert abs(len(spike) - inside - 4_800) < 4 * 4_800**0.5
    bursts = Workload.bursts("100/s", "10m", on="1s", off="9s", idle_rate="1/s", seed=2).arrivals_us
    inside = (bursts % 10_000_000 < 1_000_000).sum()
    assert abs(inside - 6_000) < 4 * 6_000**0.5


def test_mmpp_has_the_mean_rate_of_its_states() -> None:
    counts = [len(Workload.mmpp([30, 2], ["3s", "6s"], "10m", seed=seed)) for seed in seeds(1, 60)]
    assert t_interval(counts).distance(600 * (30 * 3 + 2 * 6) / 9) < 4


def test_zipf_keys_have_their_shares() -> None:
    keys = Workload.poisson("1000/s", "50s", seed=1, keys=10, zipf=1.0).keys
    assert keys is not None
    share = 1 / np.arange(1, 11) / (1 / np.arange(1, 11)).sum()
    assert stats.chisquare(np.bincount(keys, minlength=10), share * len(keys)).pvalue > 1e-4


@pytest.mark.parametrize(
    ("service", "mean", "cv"),
    [
        (exponential("200ms"), 0.2, 1.0),
        (lognormal(0.2, cv=1.5), 0.2, 1.5),
        (stats.gamma(4, scale=0.05), 0.2, 0.5),
    ],
    ids=["exponential", "lognormal", "scipy"],
)
def test_service_times_have_their_mean_and_spread(service: Any, mean: float, cv: float) -> None:
    times_s = service_of(service).draw_us(stream(4, Purpose.SERVICE), 200_000) / 1e6
    assert t_interval(times_s).distance(mean) < 4
    assert times_s.std() / times_s.mean() == pytest.approx(cv, rel=0.05)


def test_constant_service_is_exact_and_may_be_nothing() -> None:
    rng = stream(0, Purpose.SERVICE)
    assert set(constant("0.1s").draw_us(rng, 5).tolist()) == {100_000}
    assert set(service_of(0).draw_us(rng, 5).tolist()) == {0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: constant("-1s"), "service must be >= 0"),
        (lambda: lognormal("1s", cv=0), "cv must be > 0: 0"),
        (
            lambda: service_of(stats.norm(0, 1)).draw_us(stream(0, Purpose.SERVICE), 99),
            "service must be >= 0 seconds",
        ),
    ],
)
def test_illegal_service_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
    with pytest.raises(TypeError, match="service must be exponential"):
        service_of(None)


# --- recorded ----------------------------------------------------------------------------------------------------


def table(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"t_s": [0.0, 0.1, 2.5], **columns})


def test_recorded_instants_are_rounded_to_whole_microseconds() -> None:
    frame = table(took=[0.3, 0.0, 1.0000004], user=[4, 4, 9])
    calls = Workload.from_frame(frame, key="user", service="took")
    assert calls.arrivals_us.tolist() == [0, 100_000, 2_500_000]
    assert calls.service_us is not None
    assert calls.service_us.tolist() == [300_000, 0, 1_000_000]
    assert calls.keys is not None
    assert calls.keys.tolist() == [4, 4, 9]


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_recorded_datetimes_count_from_the_first(zone: str) -> None:
    frame = pd.DataFrame(
        {"at": pd.to_datetime([f"2024-05-01T10:00:00.50{zone}", f"2024-05-01T10:00:00.75{zone}"])}
    )
    assert Workload.from_frame(frame, time="at").arrivals_us.tolist() == [0, 250_000]


def test_a_missing_key_is_a_call_without_key() -> None:
    calls = Workload.from_frame(table(user=[4, None, 9]), key="user")
    assert calls.keys is not None
    assert calls.keys.tolist() == [4, None, 9]
    calls = Workload.from_frame(table(user=["a", None, "b"]), key="user")
    assert calls.keys is not None
    assert calls.keys.tolist() == ["a", None, "b"]


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (table(), {"time": "at"}, r"must have a column 'at'; its columns are t_s"),
        (table(), {"key": "k", "service": "s"}, r"must have a column 'k' and 's'"),
        (table()[:0], {}, "at least one row: it is empty"),
        (
            table(t_s=[0.0, 2.0, 1.0]),
            {},
            r"column 't_s' must be sorted: row 2 has 1.0 after 2.0; sort the table first",
        ),
        (table(t_s=[0.0, float("nan"), 1.0]), {}, "1 are missing, the first at row 1"),
        (table(t_s=[-1.0, 0.0, 1.0]), {}, "column 't_s' must be >= 0: -1.0 at row 0"),
        (table(t_s=[0.0, 1.0, float("inf")]), {}, "must be finite: inf at row 2"),
        (table(t_s=["0", "1", "2"]), {}, "column 't_s' must be seconds"),
        (table(t_s=[True, True, True]), {}, "column 't_s' must be seconds"),
        (table(took=[1.0, -0.5, 1.0]), {"service": "took"}, "column 'took' must be >= 0: -0.5 at row 1"),
        (table(took=[1.0, None, 1.0]), {"service": "took"}, "column 'took' must have a value in every row"),
        (table(user=[1.5, 2.0, 3.0]), {"key": "user"}, "column 'user' must hold text or whole numbers"),
        (
            table(user=[True, False, True]),
            {"key": "user"},
            "keys must be text or whole numbers: True at call 0",
        ),
        (table(user=["a", "", "b"]), {"key": "user"}, "keys must be text or whole numbers: '' at call 1"),
    ],
)
def test_a_bad_table_is_refused_with_its_row(frame: pd.DataFrame, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Workload.from_frame(frame, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload(np.array([], dtype=np.int64)), "at least one call"),
        (lambda: Workload(np.array([3, 2])), "call 1 comes before call 0"),
        (lambda: Workload(np.array([-3, 2])), "arrivals must be >= 0: -3 µs"),
        (lambda: Workload(np.array([1, 2]), keys=np.array([1])), "keys must be as many as arrivals 2: 1"),
        (lambda: Workload(np.array([1]), service_us=np.array([-1])), "service must be >= 0: -1 µs at call 0"),
        (lambda: Workload.poisson(0, "1m"), "rate must be > 0: 0"),
        (lambda: Workload.poisson("1/d", "1ms"), "at least one call"),
        (lambda: Workload.poisson("1/s", "1m", zipf=1.0), "zipf needs keys"),
        (lambda: Workload.poisson("1/s", "1m", seed=-1), "seed must be >= 0"),
        (lambda: Workload.spike(1, 2, "1m", at="50s", length="20s"), r"at \+ length must be <= duration 1m"),
        (lambda: Workload.mmpp([1], ["1s"], "1m"), "at least 2"),
        (lambda: Workload.poisson("9/s", "1m").cut("5s", "5s"), "end must be > start"),
        (lambda: Workload.poisson("9/s", "1m").cut("2h", "3h"), "is empty"),
        (lambda: Workload.poisson("9/s", "1m").scaled(0), "speed must be > 0"),
    ],
)
def test_illegal_workloads_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_csv_and_parquet_read_as_the_frame_does(tmp_path: Path) -> None:
    frame = table(user=["a", "b", "a"], took=[1.0, 2.0, 3.0], other=[1, 2, 3])
    frame.to_csv(tmp_path / "calls.csv.gz", index=False)
    frame.to_parquet(tmp_path / "calls.parquet")
    expected = Workload.from_frame(frame, key="user", service="took")
    for read in (Workload.from_csv(tmp_path / "calls.csv.gz", key="user", service="took"),
                 Workload.from_parquet(tmp_path / "calls.parquet", key="user", service="took")):  # fmt: skip
        assert read.digest() == expected.digest()
        assert read.name == "calls"
    with pytest.raises(
        ConfigurationError, match=r"csv.gz must have a column 'k'; its columns are t_s, user, took, other"
    ):
        Workload.from_csv(tmp_path / "calls.csv.gz", key="k")


def read(tmp_path: Path, text: str, **options: Any) -> Workload:
    (tmp_path / "calls.csv").write_text(text)
    return Workload.from_csv(tmp_path / "calls.csv", **options)


def test_keys_of_a_file_are_text_and_only_an_empty_field_is_missing(tmp_path: Path) -> None:
    keys = ["007", "7", "0007", "1e5", "100000", "NA", "null", "None", "nan", "", " x"]
    calls = read(tmp_path, "t_s,k\n" + "".join(f"{n},{key}\n" for n, key in enumerate(keys)), key="k")
    assert calls.keys is not None
    assert calls.keys.tolist() == [key or None for key in keys]


def test_a_long_file_of_numbers_and_a_word_spells_each_key_one_way(tmp_path: Path) -> None:
    lines = [f"{n},{n % 10}\n" for n in range(400_000)] + ["400000,word\n"]
    calls = read(tmp_path, "t_s,k\n" + "".join(lines), key="k")
    assert calls.keys is not None
    assert len(set(calls.keys.tolist())) == 11


@pytest.mark.parametrize(
    ("first", "second", "epoch"),
    [
        ("2024-05-01T10:00:00.5", "2024-05-01 10:00:00.75", None),
        ("2024-05-01T10:00:00.5Z", "2024-05-01T12:00:00.75+02:00", None),
        ("1714557600.5", "1714557600.75", "s"),
        ("1714557600500", "1714557600750", "ms"),
        ("1714557600500000", "1714557600750000", "us"),
        ("1714557600500000499", "1714557600750000500", "ns"),
    ],
)
def test_instants_of_a_file(tmp_path: Path, first: str, second: str, epoch: str | None) -> None:
    calls = read(tmp_path, f"t_s\n{first}\n{second}\n", epoch=epoch)
    assert calls.arrivals_us.tolist() == [0, 250_001 if epoch == "ns" else 250_000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("t_s\n2024-05-01T10:00:00Z\n2024-05-01T10:00:01\n", "a time zone in every row or in none: .* row 1"),
        ("t_s\n2024-05-01T10:00:00\nsoon\n", "seconds or ISO 8601 datetimes: 'soon' at row 1"),
        ("t_s\n1\n2024-05-01T10:00:00\n", "seconds or ISO 8601 datetimes: '1' at row 0"),
        ('t_s\n1\n""\n', "1 are missing, the first at row 1"),
    ],
)
def test_instants_of_a_file_that_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(tmp_path, text)


def test_keys_that_read_alike_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="keys must differ as text: 7 and '7'"):
        Workload.from_frame(table(user=[7, "7", "a"]), key="user")
    mixed = Workload(np.array([1, 2]), keys=[7, "a"])  # type: ignore[arg-type]
    assert mixed.keys is not None
    assert mixed.keys.tolist() == [7, "a"]


def test_parquet_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"flowq-kit\[parquet\]"):
        Workload.from_parquet("calls.parquet")


def test_cut_and_scaled_keep_what_belongs_to_a_call() -> None:
    calls = Workload.poisson("20/s", "1m", seed=1, keys=4).with_service(exponential("1s"), seed=1)
    part = calls.cut("10s", "20s")
    inside = (calls.arrivals_us >= 10_000_000) & (calls.arrivals_us < 20_000_000)
    for one, all_ in ((part.keys, calls.keys), (part.service_us, calls.service_us)):
        assert one is not None
        assert all_ is not None
        assert one.tolist() == all_[inside].tolist()
    assert part.arrivals_us.tolist() == (calls.arrivals_us[inside] - 10_000_000).tolist()
    fast = calls.scaled(2)
    assert fast.arrivals_us.tolist() == np.rint(calls.arrivals_us / 2).astype(int).tolist()
    assert fast.service_us is not None
    assert calls.service_us is not None
    assert fast.service_us.tolist() == calls.service_us.tolist()


def test_zero_wait_burst_is_the_largest_excess_of_any_span() -> None:
    rng = np.random.default_rng(1)
    arrivals_us = np.sort(rng.integers(0, 20_000_000, 60))
    rate = 2.5
    best = max(
        j - i + 1 - rate * (arrivals_us[j] - arrivals_us[i]) / 1e6 for i in range(60) for j in range(i, 60)
    )
    assert Workload(arrivals_us).zero_wait_burst(rate) == pytest.approx(best)
