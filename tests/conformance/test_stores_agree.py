"""One policy core, two worlds: the same scenario through memory and PostgreSQL gives the same log, entry by entry."""

from __future__ import annotations

import os
import secrets

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings

from flowq.memory import MemoryStore
from flowq.postgres.driver import PostgresStore
from scenario import Play, Scenario, scenarios

SCENARIOS = int(os.environ.get("FLOWQ_SCENARIOS", "2000"))
"""Of the slow test; the long run draws 50,000."""


def in_memory(scenario: Scenario) -> list[object]:
    store = MemoryStore()
    return Play(lambda program, now_us: store.run(program(), now_us)).run(scenario)


def in_postgres(connection: psycopg.Connection, scenario: Scenario) -> list[object]:
    namespace = f"conformance-{secrets.token_hex(8)}"
    store = PostgresStore(namespace, notify=False)
    drive = Play(lambda program, now_us: store.run(connection, program, now_us=now_us), namespace)
    return drive.run(scenario)


def agree(connection: psycopg.Connection, scenario: Scenario) -> None:
    expected, found = in_memory(scenario), in_postgres(connection, scenario)
    for index, (memory, postgres) in enumerate(zip(expected, found, strict=True)):
        assert postgres == memory, f"entry {index} of the log"


@given(scenario=scenarios(losses=True))
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_memory_and_postgres_decide_alike(scenario: Scenario, connection: psycopg.Connection) -> None:
    agree(connection, scenario)


@pytest.mark.slow
@pytest.mark.timeout(0)
@given(scenario=scenarios(max_steps=60, losses=True))
@settings(max_examples=SCENARIOS, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_memory_and_postgres_decide_alike_in_many_scenarios(
    scenario: Scenario, connection: psycopg.Connection
) -> None:
    agree(connection, scenario)
