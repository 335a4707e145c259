"""A queue for tests: no server, no threads, a clock that the test moves (rule S5).

``Queue("memory://")`` is a real store, driven by the same code as PostgreSQL::

    queue = Queue("memory://")
    ...
    queue.clock.advance("5s")
    assert queue.run_due() == 1

The fixture ``flowq_queue`` is such a queue, fresh for each test. Opt in by one line in ``conftest.py``::

    pytest_plugins = ["flowq.testing"]

Examples
--------
>>> from flowq.queue import Queue
>>> queue = Queue("memory://")
>>> @queue.task(debounce="10s", debounce_key="{id}", debounce_max_wait="1m")
... def index(id: int) -> str:
...     return f"indexed {id}"
>>> job = index.delay(1)
>>> queue.run_due()
0
>>> queue.clock.advance("10s")
>>> queue.run_due(), job.result()
(1, 'indexed 1')
"""

from __future__ import annotations

from typing import Any

from flowq.queue import Queue

__all__ = ["flowq_queue"]

try:
    import pytest
except ImportError:  # the fixture is pytest's; the queue isn't

    def flowq_queue() -> Queue:
        """Return a fresh queue in memory."""
        return Queue("memory://")

else:

    @pytest.fixture(name="flowq_queue")
    def flowq_queue() -> Any:
        """Return a fresh queue in memory."""
        return Queue("memory://")
