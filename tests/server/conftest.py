"""A place of its own for each test, at whose end nothing may be left running there."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from server.place import Place


@pytest.fixture
def place() -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="fq", dir="/tmp"))
    folder.chmod(0o755)
    place = Place(folder)
    yield place
    try:
        place.ends()
    finally:
        for pid in place.commands():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder)
