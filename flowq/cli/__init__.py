"""The command line: ``flowq worker``, ``flowq migrate``, ``flowq dead``. It needs the ``cli`` extra."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; the entry point of ``flowq`` and of ``python -m flowq.cli``."""
    try:
        from flowq.cli.commands import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit("flowq: the command line needs typer and rich: pip install 'flowq-kit[cli]'")
    run()
