"""The README's examples run as they stand, and its paths exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_twelve_lines_without_a_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert len([line for line in PYTHON[0].splitlines() if line.strip()]) <= 13
    exec(compile(PYTHON[0], "README.md", "exec"), {})
    assert "shed late" in capsys.readouterr().out


def test_the_same_flow_in_production(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWQ_DATABASE_URL", database_url)
    names: dict[str, object] = {}
    exec(compile(PYTHON[1], "README.md", "exec"), names)
    queue, record_sample = names["queue"], names["record_sample"]
    assert repr(record_sample.spec.flow) == "Flow(RateLimit('10/s', on_excess='drop'))"  # type: ignore[attr-defined]
    queue.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "path",
    sorted(set(re.findall(r"`((?:notebooks|benchmarks|[A-Z]+\.md)[\w./]*)`|\((notebooks/[\w.]+)\)", README))),
)
def test_what_it_points_to_exists(path: tuple[str, str]) -> None:
    assert (ROOT / (path[0] or path[1])).exists()


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", README, flags=re.MULTILINE))
def test_its_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
