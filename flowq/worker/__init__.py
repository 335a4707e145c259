"""Workers: claim due jobs, run their handlers, settle what has ended.

``worker`` is the loop; ``sources`` are the queues as it sees them, ``attention`` is when it says that it sleeps,
``upkeep`` is what each does for all. Handlers run in :mod:`flowq.execution`, the lease is kept by
:mod:`flowq.postgres.heartbeat`.
"""

from flowq.worker.worker import Worker

__all__ = ["Worker"]
