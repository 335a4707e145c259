"""Programs: all that flowq does to a store, as generators of commands; no I/O, no clock, no randomness.

One program, three drivers: :class:`flowq.memory.MemoryStore` and the synchronous and asynchronous PostgreSQL drivers
of :mod:`flowq.postgres`. See :mod:`flowq.programs.commands` for how they talk.
"""

from flowq.programs.claim import Claimed, claim
from flowq.programs.declare import Declaration, declare
from flowq.programs.enqueue import Receipt, Request, enqueue, key_hash
from flowq.programs.maintain import CRASH_LIMIT, Maintained, maintain
from flowq.programs.redrive import DeadFilter, purge, purge_matching, redrive, redrive_matching
from flowq.programs.settle import Ended, Failed, Succeeded, settle

__all__ = [
    "CRASH_LIMIT",
    "Claimed",
    "DeadFilter",
    "Declaration",
    "Ended",
    "Failed",
    "Maintained",
    "Receipt",
    "Request",
    "Succeeded",
    "claim",
    "declare",
    "enqueue",
    "key_hash",
    "maintain",
    "purge",
    "purge_matching",
    "redrive",
    "redrive_matching",
    "settle",
]
