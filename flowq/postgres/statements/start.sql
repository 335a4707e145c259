-- Start chosen jobs. $1 instant, $2 namespace, $3 worker, $4 ids, $5 the eligibilities that were read.
-- Returns them in the order of the ids. Refuses (FQ001) unless each is pending with that eligibility.
-- Locks: the jobs' rows. Index: primary key.
with started as (
    update flowq.job j
    set state = 'running', token = j.token + 1, started_us = $1::bigint,
        worker_id = $3::bigint, window_hash = null
    from unnest($4::bigint[], $5::bigint[]) with ordinality as w (id, eligible_us, n)
    where j.id = w.id and j.eligible_us = w.eligible_us and j.namespace = $2::text and j.state = 'pending'
    returning
        w.n, j.id, j.line_id, j.payload::text as payload, j.token, j.failures, j.crashes, j.max_retries,
        j.eligible_us, j.priority
),
checked as materialized (
    select flowq.require_count((select count(*) from started), cardinality($4::bigint[])) as got
)
select s.id, l.task, s.payload, s.token, s.failures, s.crashes, s.max_retries, s.eligible_us, s.priority
from checked c
left join (started s join flowq.line l on l.id = s.line_id) on true
where c.got > 0
order by s.n
