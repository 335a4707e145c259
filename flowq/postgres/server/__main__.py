"""Say which programs an embedded server would be run with: ``python -m flowq.postgres.server [--system]``."""

from __future__ import annotations

import sys

from flowq.errors import ServerUnavailable
from flowq.postgres.server.binaries import find_binaries, system_binaries


def main() -> int:
    """Print one line; with ``--system``, only the folder of the system's programs."""
    if sys.argv[1:] == ["--system"]:
        system = system_binaries()
        if system is not None:
            print(system.folder)
        return system is None
    try:
        binaries = find_binaries()
    except ServerUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    print(f"PostgreSQL {binaries.version} from {binaries.source}: {binaries.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
