"""Fixtures of the worker's tests: a database a module, and a namespace and a queue a test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import psycopg
import pytest

from flowq import Queue
from flowq.postgres.server import Server, create_database, drop_database

_namespaces = itertools.count(1)


@pytest.fixture(scope="module")
def dsn(postgres_server: Server, database_template: str, random_name: Callable[[str], str]) -> Iterator[str]:
    """The module's database, with the schema."""
    name = random_name("module")
    yield create_database(postgres_server, name, database_template)
    drop_database(postgres_server, name)


@pytest.fixture
def namespace() -> str:
    return f"n{next(_namespaces)}"


@pytest.fixture
def queue(dsn: str, namespace: str) -> Iterator[Queue]:
    with Queue(dsn, namespace=namespace) as queue:
        yield queue


@pytest.fixture
def db(dsn: str) -> Iterator[psycopg.Connection]:
    """A look from outside."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        yield conn
