"""The house as a test: rooms import only from their left, and the core has no clock, chance, input or output."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flowq

ROOT = Path(__file__).parent.parent
CORE = ("errors", "units", "job", "policy", "programs", "memory")
BLOCKED = (
    "time",
    "random",
    "asyncio",
    "os",
    "logging",
    "secrets",
    "threading",
    "socket",
    "subprocess",
    "uuid",
)
CLOCKS = ("now", "utcnow", "today", "fromtimestamp")


def core_files() -> list[Path]:
    folder = Path(flowq.__path__[0])
    files = [
        file
        for name in CORE
        for file in (
            [folder / f"{name}.py"] if (folder / f"{name}.py").exists() else (folder / name).rglob("*.py")
        )
    ]
    assert len(files) > len(CORE)
    return files


def test_every_room_imports_only_from_its_left() -> None:
    command = [
        Path(sys.executable).parent / "lint-imports",
        "--no-cache",
        "--config",
        ROOT / "pyproject.toml",
    ]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout[-4000:] + answer.stderr


def test_no_contract_has_an_exception() -> None:
    assert "ignore_imports" not in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "file", core_files(), ids=lambda file: file.relative_to(flowq.__path__[0]).as_posix()
)
def test_the_core_reads_no_clock(file: Path) -> None:
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Attribute) and node.attr in CLOCKS:
            names = [f"time.{node.attr}"]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("open", "print")
        ):
            names = [f"os.{node.func.id}"]
        else:
            continue
        found += [f"line {node.lineno}: {name}" for name in names if name.partition(".")[0] in BLOCKED]
    assert not found


def run_without(modules: tuple[str, ...], program: str) -> None:
    """Run a program in which some modules can't be imported."""
    block = f"import sys\nfor name in {modules!r}:\n    sys.modules[name] = None\n"
    answer = subprocess.run(
        [sys.executable, "-c", block + program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert answer.returncode == 0, answer.stderr


THIRD_PARTIES = (
    "psycopg",
    "psycopg_pool",
    "simpy",
    "numpy",
    "scipy",
    "pandas",
    "matplotlib",
    "typer",
    "rich",
)


def test_the_core_needs_nothing() -> None:
    names = ", ".join(f"flowq.{name}" for name in CORE)
    run_without(THIRD_PARTIES, f"import {names}")


def test_flowq_needs_psycopg_only() -> None:
    program = "import flowq, flowq.postgres\nfor name in flowq.__all__: getattr(flowq, name)"
    run_without((*THIRD_PARTIES[2:], "flowsim"), program)


def test_exported_names_exist_and_are_sorted() -> None:
    assert set(flowq.__all__) <= set(dir(flowq))
    for name in flowq.__all__:
        assert getattr(flowq, name) is not None
    with pytest.raises(AttributeError, match="module 'flowq' has no attribute 'nonsense'"):
        flowq.nonsense  # noqa: B018


def test_every_module_has_a_docstring() -> None:
    for package in ("flowq", "flowsim"):
        for file in (ROOT / package).rglob("*.py"):
            assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), file


@pytest.mark.skipif(
    "CI" not in os.environ or not (ROOT / ".git").exists(),
    reason="outside of CI the tree may be in the making",
)
def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip(f"git does not say what is in the repository: {listed.stderr}")
    for name in listed.stdout.splitlines():
        file = ROOT / name
        if file.suffix in (".py", ".md", ".toml", ".lock", ".ipynb", ".sql", ".yml"):
            text = file.read_text(encoding="utf-8")
            assert not re.search(r"(?<![\w.:/])/(?:root|work|home)/\w", text), name
