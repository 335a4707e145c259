"""Where an embedded server lives: a short private folder under the temporary folder, one a checkout and choice."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowq.errors import ServerUnavailable
from flowq.postgres.server.binaries import Binaries
from flowq.postgres.server.guard import Layout
from flowq.postgres.server.keeper import _make_private, attach, home_for

BINARIES = Binaries(Path("/opt/pg/bin"), "18.6", "a test", Path("/opt"), ("pg",))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fq", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_the_temporary_folder_is_used(short: Path) -> None:
    assert home_for(BINARIES).parent == short


def test_a_deep_temporary_folder_is_not(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = short / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    home = home_for(BINARIES)
    assert home.parent == Path("/tmp").resolve()
    assert len(os.fsencode(Layout(home).socket)) <= 103


@pytest.mark.skipif(os.geteuid() != 0, reason="root's server is another user's")
def test_a_temporary_folder_that_the_servers_user_cannot_enter_is_not(short: Path) -> None:
    short.chmod(0o700)
    assert home_for(BINARIES).parent == Path("/tmp").resolve()


def test_a_home_for_each_choice(short: Path) -> None:
    homes = {
        home_for(BINARIES),
        home_for(BINARIES, fsync=False),
        home_for(BINARIES, ephemeral=True),
        home_for(BINARIES._replace(version="17.1")),
        home_for(BINARIES._replace(folder=Path("/opt/other/bin"))),
    }
    assert len(homes) == 5
    assert home_for(BINARIES) in homes


def test_a_home_is_private(short: Path) -> None:
    home = home_for(BINARIES)
    _make_private(home)
    _make_private(home)
    assert home.stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)


@pytest.mark.parametrize("kind", ["a link", "a file", "open to others", "of another user"])
def test_what_another_user_could_have_put_there_is_refused(short: Path, kind: str) -> None:
    home = short / "home"
    if kind == "a link":
        home.symlink_to(short)
    elif kind == "a file":
        home.touch()
    elif kind == "open to others":
        home.mkdir()
        home.chmod(0o777)
    elif os.geteuid() == 0:
        home.mkdir()
        os.chown(home, 65534, -1)
    else:
        pytest.skip("only root can give a folder away")
    with pytest.raises(ServerUnavailable, match="must be a folder of this user alone: remove it"):
        _make_private(home)


def test_a_server_that_cannot_start_says_why(short: Path) -> None:
    folder = short / "pg/bin"
    folder.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (folder / name).write_text(
            "#!/bin/sh\n[ $1 = --version ] && exit 0\necho the disk is gone >&2\nexit 1\n"
        )
        (folder / name).chmod(0o755)
    with pytest.raises(ServerUnavailable, match=r"can't be started: initdb failed \(log .*the disk is gone"):
        attach(BINARIES._replace(folder=folder, base=short, trees=("pg",)))
