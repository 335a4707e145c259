"""What every worker does for all: return the jobs of dead workers, and see to the archive's partitions."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final

import psycopg

from flowq.errors import DatabaseUnreachable, StoreError
from flowq.postgres.connection import AsyncLink
from flowq.postgres.driver import connect, translated
from flowq.postgres.migrate import create_partitions
from flowq.programs import maintain

__all__ = ["keep_up"]

_log = logging.getLogger("flowq.worker")
_PAUSE_S: Final = 0.8
"""Longest pause between two searches for lapsed jobs, so that they start within lease + 1 s (rule X5)."""
_PARTITIONS_S: Final = 86_400.0
_WEEKS_AHEAD: Final = 4
"""How often the archive's partitions are looked after, and how far ahead they are made."""


async def keep_up(
    link: AsyncLink, dsn: str, lease_us: int, sure: Callable[[], bool], returned: Callable[[None], None]
) -> None:
    """Keep up until cancelled.

    Parameters
    ----------
    link, dsn
        A connection, and how to make another.
    lease_us
        That of the worker; the search runs three times as often, and oftener for long leases.
    sure
        Whether the worker's own lease stands: one that may be dead itself leaves its own jobs alone.
    returned
        Called with None after jobs were returned to some queues.
    """
    pause_s = min(lease_us / 3e6, _PAUSE_S)
    partitions_at = time.monotonic() + random.uniform(0.0, _PARTITIONS_S)
    while True:
        await asyncio.sleep(pause_s * random.uniform(0.8, 1.0))
        if not sure():
            continue
        try:
            if time.monotonic() >= partitions_at:
                partitions_at = time.monotonic() + _PARTITIONS_S
                await asyncio.to_thread(_create_partitions, dsn)
            while (done := await link.run(maintain)).returned or done.dead:
                _log.warning(
                    "upkeep: %d jobs of lost workers returned, %d dead", len(done.returned), len(done.dead)
                )
                returned(None)
                if not done.more:
                    break
        except DatabaseUnreachable as error:
            _log.debug("upkeep: %s", error)
        except StoreError:
            _log.exception("upkeep: the store refused")


def _create_partitions(dsn: str) -> None:
    try:
        with connect(dsn) as conn:
            create_partitions(conn, _WEEKS_AHEAD)
    except psycopg.Error as error:
        raise translated(error) from error
