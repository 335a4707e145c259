"""The PostgreSQL server to use: a named one, or an embedded one that needs no set-up and ends with its users.

``binaries`` finds the programs of a server, ``guard`` runs one, ``keeper`` starts and holds it, ``resolve`` decides
between an external and an embedded one.
"""

from flowq.postgres.server.binaries import MINIMUM_MAJOR, Binaries, find_binaries, system_binaries
from flowq.postgres.server.resolve import (
    Server,
    create_database,
    drop_database,
    embedded_server,
    masked,
    resolve_server,
)

__all__ = [
    "MINIMUM_MAJOR",
    "Binaries",
    "Server",
    "create_database",
    "drop_database",
    "embedded_server",
    "find_binaries",
    "masked",
    "resolve_server",
    "system_binaries",
]
