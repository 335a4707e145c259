-- Remove dead letters for a manual retry. $1 namespace, $2 ids. Returns those that existed, by id.
-- Locks: the letters' rows, ordered by id. Index: primary key of dead_letter; archive (id, finished_us), one partition.
with wanted as materialized (
    select d.job_id
    from flowq.dead_letter d
    where d.job_id = any ($2::bigint[]) and d.namespace = $1::text
    order by d.job_id
    for update
),
gone as (
    delete from flowq.dead_letter d
    where d.job_id = any (array(select job_id from wanted))
    returning d.job_id, d.finished_us, d.shed
)
select
    g.job_id, q.name, l.task, l.priority, a.payload::text, a.cost, a.max_retries, a.metadata::text, g.shed
from gone g
join flowq.archive a on a.id = g.job_id and a.finished_us = g.finished_us
join flowq.line l on l.id = a.line_id
join flowq.queue q on q.id = l.queue_id
order by g.job_id
