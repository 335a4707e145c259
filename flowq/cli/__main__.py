"""``python -m flowq.cli``: the same as ``flowq``."""

from flowq.cli import main

if __name__ == "__main__":
    main()
