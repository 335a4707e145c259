"""Maintain: give back the jobs of workers that died.

A lapsed lease is not a failure of the handler: it is counted apart, with a limit of its own, and its job is due
again at once (rule X5). A job that keeps killing its worker ends in the dead letters.
"""

from __future__ import annotations

from typing import NamedTuple

from flowq.programs.commands import DeadJob, LapsedJob, Program, ReadLapsed, RetriedJob, Round, Settle

__all__ = ["CRASH_LIMIT", "Maintained", "maintain"]

CRASH_LIMIT = 3
"""Crashes after which a job is started once more; the next one is its last."""
_PAGE = 1_000


class Maintained(NamedTuple):
    returned: tuple[int, ...]
    """Ids that are pending again."""
    dead: tuple[int, ...]
    """Ids that crashed their worker once too often."""
    more: bool
    """There may be more: maintain again at once."""


def maintain(*, crash_limit: int = CRASH_LIMIT, limit: int = _PAGE) -> Program[Maintained]:
    """Return the jobs whose worker's lease lapsed to their queues."""
    [lapsed] = yield Round((ReadLapsed(limit),), False)
    jobs: list[LapsedJob] = lapsed
    again = [job for job in jobs if job.crashes < crash_limit]
    over = [job for job in jobs if job.crashes >= crash_limit]
    settlement = Settle(
        (),
        tuple(RetriedJob(job.id, job.token, 0, _error(job), crashed=True) for job in again),
        tuple(
            DeadJob(job.id, job.token, _error(job), '{"crashes": "exhausted"}', crashed=True) for job in over
        ),
    )
    yield Round((settlement,) if jobs else (), True)
    return Maintained(tuple(j.id for j in again), tuple(j.id for j in over), len(jobs) == limit)


def _error(job: LapsedJob) -> str:
    return f"worker lost: the lease of worker {job.worker} lapsed while the job ran (crash {job.crashes + 1})"
