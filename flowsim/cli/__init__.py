"""The command line: ``flowsim demo``. It needs the ``cli`` and ``analysis`` extras."""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRAS = ("typer", "rich", "click", "simpy", "numpy", "scipy", "pandas", "matplotlib", "tqdm")


def main() -> None:
    """Run the command line; the entry point of ``flowsim`` and of ``python -m flowsim.cli``."""
    try:
        from flowsim.cli.commands import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRAS:
            raise
        sys.exit(f"flowsim: {error.name} is missing: pip install 'flowq-kit[cli,analysis]'")
    run()
