"""Find the PostgreSQL server to use: a given one, or an embedded one that is started for it.

In this order: the argument; ``FLOWQ_DATABASE_URL``; ``DATABASE_URL``; embedded. A server that was named but does not
answer, or is too old, is an error, never a reason to take the embedded one. ``PG*`` variables alone don't name a
server; a bare ``postgresql://`` does, and libpq then reads them.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from flowq.errors import ConfigurationError, DatabaseUnreachable, ServerUnavailable
from flowq.postgres.server.binaries import MINIMUM_MAJOR, find_binaries

if TYPE_CHECKING:
    from flowq.postgres.server.keeper import Hold

__all__ = [
    "DATABASE",
    "FSYNC_VARIABLE",
    "URL_VARIABLES",
    "Server",
    "create_database",
    "drop_database",
    "embedded_server",
    "masked",
    "resolve_server",
]

URL_VARIABLES: Final = ("FLOWQ_DATABASE_URL", "DATABASE_URL")
"""The environment variables that name a server, in this order."""
FSYNC_VARIABLE: Final = "FLOWQ_PG_FSYNC"
"""``off`` makes the embedded server faster, and its data not survive a crash of the machine: for unit tests."""
DATABASE: Final = "flowq"
"""The database of the embedded server that users get."""
_CONNECT_S: Final = 10

_held: defaultdict[str, list[Hold]] = defaultdict(list)
"""DSN → the uses of an embedded server that this process has not released."""
_held_lock = threading.Lock()


@dataclass(frozen=True)
class Server:
    """A PostgreSQL server that answers.

    Parameters
    ----------
    dsn
        How to connect to it; of an embedded server, to the database ``flowq``. May hold a password: print
        :meth:`describe` instead.
    version
        As the server says it: ``"18.6"``.
    source
        What named it, or where its programs are from.
    embedded
        Whether it runs only for flowq, and ends with the last process that uses it.
    fsync
        Whether its commits survive a crash of the machine. Measurements must say.
    """

    dsn: str = field(repr=False)
    version: str
    source: str
    embedded: bool
    fsync: bool = True

    def describe(self) -> str:
        """Return one line: which server this is, for logs and reports. It holds no password.

        Examples
        --------
        >>> Server(
        ...     "postgresql://app:secret@db.example/jobs", "16.4", "DATABASE_URL", embedded=False
        ... ).describe()
        'PostgreSQL 16.4, external, from DATABASE_URL: postgresql://app:***@db.example/jobs'
        """
        kind = "embedded" if self.embedded else "external"
        fsync = "" if self.fsync else ", fsync off"
        place = conninfo_to_dict(self.dsn)["host"] if self.embedded else masked(self.dsn)
        return f"PostgreSQL {self.version}, {kind}, from {self.source}{fsync}: {place}"

    def release(self) -> None:
        """Say that this use of an embedded server is over; of an external one, nothing happens.

        Each :func:`resolve_server` is one use. The server stops when no process uses it; the end of a process ends
        all its uses.
        """
        with _held_lock:
            if self.embedded and _held[self.dsn]:
                _held[self.dsn].pop().close()


def resolve_server(dsn: str | None = None) -> Server:
    """Return the server to use, having started an embedded one if none is named.

    Use it wherever a DSN is optional, and print :meth:`Server.describe` once.

    Parameters
    ----------
    dsn
        A PostgreSQL URL or connection string; None: what the environment names, else the embedded server.

    Returns
    -------
    Server
        It answered just now. An embedded one stays for as long as this process lives, or until
        :meth:`Server.release`.

    Raises
    ------
    DatabaseUnreachable
        A server was named, and does not answer or is older than PostgreSQL 15.
    ServerUnavailable
        None was named, and an embedded one can't be started; the message names the remedies.
    """
    if dsn is not None:
        return _external(dsn, "the argument")
    for variable in URL_VARIABLES:
        named = os.environ.get(variable)
        if named:
            return _external(named, variable)
    return embedded_server(fsync=_fsync_wanted())


def embedded_server(*, fsync: bool = True, grace_s: float = 1.0, ephemeral: bool = False) -> Server:
    """Start or join the embedded server of this user and checkout, whatever the environment names.

    Parameters
    ----------
    fsync
        Off is for unit tests: a server without it is another server.
    grace_s
        How long it runs on after its last user has gone, in seconds, ≥ 0.
    ephemeral
        Whether its data goes with it. Asked of the one that starts it.

    Raises
    ------
    ServerUnavailable
        It can't be started; the message names the remedies.
    """
    from flowq.postgres.server.keeper import attach

    binaries = find_binaries()
    hold = attach(binaries, fsync=fsync, grace_s=grace_s, ephemeral=ephemeral)
    dsn = hold.dsn(DATABASE)
    try:
        with psycopg.connect(hold.dsn("postgres"), autocommit=True, connect_timeout=_CONNECT_S) as conn:
            _ensure_database(conn, DATABASE)
            server = Server(dsn, _version(conn), binaries.source, embedded=True, fsync=_fsync(conn))
    except psycopg.Error as error:
        hold.close()
        raise ServerUnavailable(f"the embedded server does not answer: {error}") from error
    with _held_lock:
        _held[dsn].append(hold)
    return server


def create_database(server: Server, name: str, template: str | None = None) -> str:
    """Create a database on a server and return its DSN.

    Parameters
    ----------
    name
        Must be free.
    template
        A database to copy, which nobody is connected to; None: an empty one.
    """
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        statement = sql.SQL("create database {} template {}")
        conn.execute(statement.format(sql.Identifier(name), sql.Identifier(template or "template0")))
    return make_conninfo(server.dsn, dbname=name)


def drop_database(server: Server, name: str) -> None:
    """Drop a database, ending the sessions that are still in it; nothing happens if there is none."""
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def masked(dsn: str) -> str:
    """Return a DSN without its secrets, for messages.

    Examples
    --------
    >>> masked("postgresql://app:secret@db.example:5433/jobs?sslmode=require")
    'postgresql://app:***@db.example:5433/jobs?sslmode=require'
    >>> masked("host=db.example password='a b' dbname=jobs")
    'postgresql://:***@db.example/jobs'
    >>> masked("mysql://app:secret@db.example/jobs")
    '(not a PostgreSQL connection string)'
    """
    try:
        parts: dict[str, Any] = conninfo_to_dict(dsn)
    except psycopg.Error:
        return "(not a PostgreSQL connection string)"
    user, host, port, database = (parts.pop(name, None) for name in ("user", "host", "port", "dbname"))
    secret = ":***" if parts.pop("password", None) is not None else ""
    account = f"{user or ''}{secret}@" if user or secret else ""
    place = f":{port}" if port else ""
    options = "&".join(f"{key}={'***' if 'password' in key else value}" for key, value in parts.items())
    return f"postgresql://{account}{host or ''}{place}/{database or ''}" + (f"?{options}" if options else "")


def _external(dsn: str, source: str) -> Server:
    shown = masked(dsn)
    try:
        parts: dict[str, Any] = conninfo_to_dict(dsn)
    except psycopg.Error:
        raise DatabaseUnreachable(  # without libpq's words: they may quote a password
            f"{source} must be a PostgreSQL URL, like postgresql://user@host:5432/database: {shown}"
        ) from None
    parts.setdefault("connect_timeout", _CONNECT_S)
    try:
        with psycopg.connect(**parts, autocommit=True) as conn:
            major = conn.info.server_version // 10_000
            server = Server(dsn, _version(conn), source, embedded=False, fsync=_fsync(conn))
    except psycopg.Error as error:
        reason = (str(error).splitlines() or ["no reason given"])[0]
        if parts.get("password"):
            reason = reason.replace(parts["password"], "***")
        raise DatabaseUnreachable(
            f"{source} must name a server that answers: {shown}: {reason}. The embedded server is used only if none "
            "is named"
        ) from None
    if major < MINIMUM_MAJOR:
        raise DatabaseUnreachable(
            f"{source} must name PostgreSQL {MINIMUM_MAJOR} or newer: {shown} is {server.version}"
        )
    return server


def _ensure_database(conn: psycopg.Connection[Any], name: str) -> None:
    found = conn.execute("select from pg_database where datname = %s", (name,)).fetchone()
    if found is None:
        try:
            conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            return  # another process was faster


def _version(conn: psycopg.Connection[Any]) -> str:
    return _show(conn, "server_version").partition(" ")[0]


def _fsync(conn: psycopg.Connection[Any]) -> bool:
    return _show(conn, "fsync") == "on"


def _show(conn: psycopg.Connection[Any], name: str) -> str:
    row = conn.execute("select current_setting(%s)", (name,)).fetchone()
    return str(row[0]) if row else ""


def _fsync_wanted() -> bool:
    text = os.environ.get(FSYNC_VARIABLE) or "on"
    if text not in ("on", "off"):
        raise ConfigurationError(f"{FSYNC_VARIABLE} must be 'on' or 'off': {text!r}")
    return text == "on"
