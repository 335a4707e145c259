"""PostgreSQL: the store of production.

``codec`` turns commands into statements and rows into replies, ``driver`` carries them, ``migrate`` makes the
schema.
"""

from flowq.postgres.driver import PostgresStore, aconfigure, aconnect, apool, configure, connect, pool

__all__ = [
    "PostgresStore",
    "aconfigure",
    "aconnect",
    "apool",
    "configure",
    "connect",
    "pool",
]
