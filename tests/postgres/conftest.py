"""Fixtures of the PostgreSQL tests: a database a module, connections, and a store in a namespace of its own.

Tests of a module share its database, so each works in a namespace that no other has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from flowq.postgres import PostgresStore, connect
from flowq.postgres.server import Server, create_database, drop_database

_namespaces = itertools.count(1)


@pytest.fixture(scope="module")
def dsn(postgres_server: Server, database_template: str) -> Iterator[str]:
    """The module's database, with the schema."""
    name = f"flowq_test_module_{uuid4().hex[:16]}"
    yield create_database(postgres_server, name, database_template)
    drop_database(postgres_server, name)


@pytest.fixture
def open_connection(dsn: str) -> Iterator[Callable[[], psycopg.Connection[Any]]]:
    """Opens connections of flowq's own kind, and closes them after the test."""
    opened: list[psycopg.Connection[Any]] = []

    def open_one() -> psycopg.Connection[Any]:
        opened.append(connect(dsn))
        return opened[-1]

    yield open_one
    for conn in opened:
        conn.close()


@pytest.fixture
def conn(open_connection: Callable[[], psycopg.Connection[Any]]) -> psycopg.Connection[Any]:
    return open_connection()


@pytest.fixture
def namespace() -> str:
    return f"n{next(_namespaces)}"


@pytest.fixture
def store(namespace: str) -> PostgresStore:
    return PostgresStore(namespace)


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    """Threads, for what is expected to wait."""
    with ThreadPoolExecutor(4) as threads:
        yield threads
