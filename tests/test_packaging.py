"""What is shipped and how it is set up: the wheel, the lock, the extras, the compose file."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import yaml

import flowq

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_distribution_is_private_and_has_another_name() -> None:
    project = PROJECT["project"]
    assert project["name"] not in ("flowq", "flowsim"), "those are taken by others"
    assert "Private :: Do Not Upload" in project["classifiers"]
    assert project["version"] == flowq.__version__


def test_the_base_needs_psycopg_only() -> None:
    assert [name.partition("[")[0] for name in PROJECT["project"]["dependencies"]] == ["psycopg"]


def test_all_means_all_extras() -> None:
    extras: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
    [everything] = extras["all"]
    named = everything.removeprefix("flowq-kit[").removesuffix("]").split(",")
    assert {*named, "all"} == set(extras)


def test_the_wheel_has_statements_migrations_and_type_marks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        packed = set(files.namelist())
    for package in ("flowq", "flowsim"):
        for kind in ("*.py", "*.sql", "py.typed"):
            for file in (ROOT / package).rglob(kind):
                assert file.relative_to(ROOT).as_posix() in packed
    assert not [name for name in packed if not name.startswith(("flowq/", "flowsim/", "flowq_kit-"))]


def test_the_lock_pins_by_hash_and_names_no_index() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text
    pins = re.findall(r"^[a-z0-9].*?(?=^[a-z0-9]|\Z)", text, re.DOTALL | re.MULTILINE)
    assert len(pins) > 50
    assert not [pin.partition(" ")[0] for pin in pins if "==" not in pin or "--hash=sha256:" not in pin]


def test_the_build_back_end_is_the_locked_one() -> None:
    [pin] = PROJECT["build-system"]["requires"]
    assert f"\n{pin} " in (ROOT / "requirements.lock").read_text(encoding="utf-8")


def test_the_compose_file() -> None:
    """It can't be run without a Docker engine; these are the mistakes that are known."""
    compose: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    [service] = compose["services"].values()
    assert service["image"] == "postgres:18"
    [volume] = service["volumes"]
    assert volume.partition(":")[2] == "/var/lib/postgresql", (
        "image 18 refuses to start with its data subfolder"
    )
    assert volume.partition(":")[0] in compose["volumes"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "loopback only"
    assert "pg_isready" in service["healthcheck"]["test"][1]
