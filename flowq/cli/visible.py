"""Text that comes from data, as a terminal may be shown it: characters that would act on the terminal are spelled out.

A task's name, a queue's or an error's text may hold escape sequences, carriage returns or marks that turn the direction
of writing; none of them reaches the terminal as such.
"""

from __future__ import annotations

import logging

__all__ = ["VisibleFormatter", "visible"]


def visible(text: str, keep: str = "\n") -> str:
    r"""Return text with all that isn't printable as its escape, but for the characters to ``keep``.

    >>> visible("\x1b[31mred\r"), visible("two\nlines", keep="")
    ('\\x1b[31mred\\r', 'two\\nlines')
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


class VisibleFormatter(logging.Formatter):
    """Formats log records as :func:`visible` text; tracebacks keep their lines and tabs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line or lines."""
        return visible(super().format(record), "\n\t")
