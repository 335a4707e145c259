"""What all tests share: one PostgreSQL server for a run, a fresh database for a test, hypothesis profiles.

The server is an embedded one with fsync off, whatever the environment names: a test never touches a server that
somebody uses. ``FLOWQ_TEST_DATABASE_URL`` names another server to test on; tests then work only in databases that
they create there under random names, and drop them. ``FLOWQ_PG_BIN`` names other programs for the embedded one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from hypothesis import settings

from flowq.errors import ServerUnavailable
from flowq.postgres.migrate import migrate
from flowq.postgres.server import (
    Server,
    create_database,
    drop_database,
    embedded_server,
    find_binaries,
    masked,
    resolve_server,
)

TEST_URL = "FLOWQ_TEST_DATABASE_URL"

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_configure() -> None:
    for variable in ("FLOWQ_DATABASE_URL", "DATABASE_URL"):
        os.environ.pop(variable, None)


def pytest_report_header() -> str:
    url = os.environ.get(TEST_URL)
    if url:
        return f"server: external, from {TEST_URL}: {masked(url)}"
    try:
        binaries = find_binaries()
    except ServerUnavailable as error:
        return f"server: {error}"
    return f"server: PostgreSQL {binaries.version}, embedded, from {binaries.source}, fsync off"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the server as `postgres`."""
    for item in items:
        if "postgres_server" in getattr(item, "fixturenames", ()):
            item.add_marker("postgres")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """The server of this run; processes of one run share it, as do runs of one checkout at the same time."""
    url = os.environ.get(TEST_URL)
    server = resolve_server(url) if url else embedded_server(fsync=False, ephemeral=True)
    yield server
    server.release()


@pytest.fixture(scope="session")
def database_template(postgres_server: Server) -> Iterator[str]:
    """The name of a database with flowq's schema, to copy."""
    name = _random_name("template")
    migrate(create_database(postgres_server, name))
    yield name
    drop_database(postgres_server, name)


@pytest.fixture
def database_url(postgres_server: Server, database_template: str) -> Iterator[str]:
    """The DSN of a fresh database with flowq's schema."""
    name = _random_name("case")
    yield create_database(postgres_server, name, database_template)
    drop_database(postgres_server, name)


@pytest.fixture
def empty_database_url(postgres_server: Server) -> Iterator[str]:
    """The DSN of a fresh database without anything."""
    name = _random_name("empty")
    yield create_database(postgres_server, name)
    drop_database(postgres_server, name)


def _random_name(kind: str) -> str:
    return f"flowq_test_{kind}_{uuid4().hex[:16]}"


@pytest.fixture(scope="session")
def random_name() -> Callable[[str], str]:
    """Names for databases on a server that may be somebody's."""
    return _random_name
