"""Listen for hints that jobs became due.

Theory of operation
-------------------
NOTIFY is a hint, never the payload: whoever hears one looks at the store. A hint may also get lost, so whatever
could have hidden one (a connection that broke, a listener that just began) ends in the call for every queue, and the
worker polls besides.

The listener has a connection of its own. It connects again with a growing, jittered wait, and checks itself: now and
then another connection of the worker notifies a channel that only this listener hears. Silence then means that the
connection is dead, or that LISTEN doesn't work through it, as with a transaction pooler; of this it warns, once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import sql

from flowq.errors import StoreError
from flowq.postgres.connection import AsyncLink, aopen

__all__ = ["Listener"]

_log = logging.getLogger("flowq.listener")
_CHECK_S: Final = 30.0
_ANSWER_S: Final = 5.0
_FIRST_WAIT_S, _LAST_WAIT_S = 0.1, 5.0


class Listener:
    """Calls ``hint`` with the name of a queue, or with None for all, whenever jobs may have become due.

    Parameters
    ----------
    dsn
        A direct connection: LISTEN needs a session of its own.
    echo
        The worker's other connection: it names the channels, and answers for the self-check.
    queues
        The queues to hear of; they must exist.
    hint
        Called in the event loop; must not wait.
    """

    def __init__(
        self, dsn: str, echo: AsyncLink, queues: tuple[str, ...], hint: Callable[[str | None], None]
    ) -> None:
        self._dsn = dsn
        self._echo = echo
        self._queues = queues
        self._hint = hint
        self._own = f"flowq_check_{secrets.token_hex(8)}"
        self._warned = False
        self.hearing = False
        """Whether the last self-check was heard."""

    async def run(self) -> None:
        """Listen until cancelled."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                async with await aopen(self._dsn) as conn:
                    await self._listen(conn)
                wait_s = _CHECK_S
            except (StoreError, psycopg.Error) as error:
                if self.hearing:
                    wait_s = _FIRST_WAIT_S
                    _log.warning("listener: the connection was lost, connecting again: %s", error)
            self.hearing = False
            self._hint(None)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(wait_s * 2, _LAST_WAIT_S)

    async def _listen(self, conn: psycopg.AsyncConnection[Any]) -> None:
        names = {channel: queue for queue, channel in (await self._echo.channels(self._queues)).items()}
        for channel in (*names, self._own):
            await conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        self._hint(None)
        while await self._heard(conn, names):
            self.hearing = True
            async for notify in conn.notifies(timeout=_CHECK_S):
                self._hint(names.get(notify.channel))
            self._hint(None)

    async def _heard(self, conn: psycopg.AsyncConnection[Any], names: dict[str, str]) -> bool:
        """Notify the listener's own channel from the other connection; whether it was heard."""
        await self._echo.notify(self._own)
        async for notify in conn.notifies(timeout=_ANSWER_S):
            if notify.channel == self._own:
                return True
            self._hint(names.get(notify.channel))
        if not self._warned:
            self._warned = True
            _log.warning(
                "listener: LISTEN is not heard through this connection (a transaction pooler?), so new jobs wait for"
                " the next poll: give the worker a direct DSN, listen_dsn= or FLOWQ_LISTEN_URL"
            )
        return False
