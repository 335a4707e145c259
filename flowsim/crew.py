"""A worker process of :mod:`flowsim.realtime`: ``python -m flowsim.crew JSON``. It imports flowq and nothing heavy."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import NamedTuple

from flowq.policy import CoDel, Flow
from flowq.queue import AsyncQueue
from flowq.worker import Worker

__all__ = ["Crew"]


class Crew(NamedTuple):
    """What a worker process and its caller must agree on."""

    dsn: str
    namespace: str
    flow: Flow
    workers: int

    def queue(self) -> AsyncQueue:
        """Return a queue whose task ``job(key, service_s)`` has the flow's policies and waits its service time."""
        queue = AsyncQueue(self.dsn, namespace=self.namespace)

        async def job(key: str, service_s: float) -> None:
            await asyncio.sleep(service_s)

        async def ready() -> None: ...

        queue.task(name="job", flow=self.flow.without(CoDel))(job)
        queue.task(name="ready", queue="ready")(ready)
        if self.flow.codel is not None:
            queue.set_queue_codel("default", self.flow.codel)
        return queue

    def to_json(self) -> str:
        """Return the crew as JSON text."""
        return json.dumps([self.dsn, self.namespace, self.flow.to_json(), self.workers])

    @classmethod
    def from_json(cls, text: str) -> Crew:
        """Return the crew that `to_json` wrote."""
        dsn, namespace, flow, workers = json.loads(text)
        return cls(dsn, namespace, Flow.from_json(flow), workers)


def main(text: str) -> None:
    """Work until told to stop."""
    logging.basicConfig(level=logging.WARNING)
    crew = Crew.from_json(text)
    Worker(crew.queue(), queues=("default", "ready"), concurrency=crew.workers).run()


if __name__ == "__main__":
    main(sys.argv[1])
