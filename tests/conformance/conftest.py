"""A connection whose commits needn't be durable: conformance is about decisions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from flowq.postgres.driver import connect


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(database_url) as connection:
        connection.execute("set synchronous_commit = off")
        yield connection
