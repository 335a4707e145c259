"""The README's examples run as they stand, and its paths exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_twelve_lines_without_a_database(capsys: pytest.CaptureFixture[str]) -> None:
    assert len([line for line in PYTHON[0].splitlines() if line.strip()]) <= 13
    exec(compile(PYTHON[0], "README.md", "exec"), {})
    assert "shed late" in capsys.readouterr().out


def test_the_same_flow_in_production(database_url: str, tmp_path: Path) -> None:
    """The two files of the README, with the worker that it starts."""
    for name, text in zip(("app.py", "send.py"), PYTHON[1:3], strict=True):
        assert text.startswith(f"# {name}\n")
        (tmp_path / name).write_text(text)
    environment = os.environ | {
        "FLOWQ_DATABASE_URL": database_url,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    worker = subprocess.Popen(
        [sys.executable, "-m", "flowq.cli", "worker", "app:queue"], cwd=tmp_path, env=environment
    )
    try:
        sent = subprocess.run(
            [sys.executable, "send.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    finally:
        worker.terminate()
        worker.wait(60)
    assert "charged 1000" in sent.stdout


def test_the_most_asked_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{n * 0.08:.2f},{n % 7},0.2\n" for n in range(200))
    Path("calls.csv").write_text(f"t_s,key,service_s\n{rows}")
    exec(compile(PYTHON[4], "README.md", "exec"), {})
    verdicts = capsys.readouterr().out.splitlines()
    assert len(verdicts) == 6
    assert all("SLO p99 sojourn <= 5s" in verdict for verdict in verdicts)


@pytest.mark.parametrize(
    "path",
    sorted(set(re.findall(r"`((?:notebooks|benchmarks|[A-Z]+\.md)[\w./]*)`|\((notebooks/[\w.]+)\)", README))),
)
def test_what_it_points_to_exists(path: tuple[str, str]) -> None:
    assert (ROOT / (path[0] or path[1])).exists()


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", README, flags=re.MULTILINE))
def test_its_make_targets_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_a_queue_for_tests() -> None:  # S5
    exec(compile(PYTHON[3], "README.md", "exec"), {})
