-- Lock running jobs whose worker's lease is over, or which is gone. $1 instant or null, $2 namespace, $3 limit.
-- Locks: first the lapsed workers' rows, so that a heartbeat under way is not overtaken (one that waits finds its lease
-- over), then the jobs' rows; both SKIP LOCKED.
-- Index: job_worker, hopping from worker to worker, so the jobs of live workers are not read.
with recursive clock as materialized (
    select flowq.now_us($1::bigint) as us
),
owner (id) as (
    (select j.worker_id from flowq.job j where j.worker_id is not null order by j.worker_id limit 1)
    union all
    select (
        select j.worker_id from flowq.job j where j.worker_id > o.id order by j.worker_id limit 1
    )
    from owner o
    where o.id is not null
),
lapsed as materialized (
    select w.id
    from flowq.worker w
    where w.namespace = $2::text and w.lease_until_us <= (select us from clock)
    for update skip locked
),
orphaned as (
    select id from lapsed
    union all
    select o.id from owner o where o.id is not null and not exists (select from flowq.worker w where w.id = o.id)
)
select j.id, j.token, j.crashes, j.worker_id
from orphaned o
cross join lateral (
    select r.id, r.token, r.crashes, r.worker_id
    from flowq.job r
    where r.worker_id = o.id and r.namespace = $2::text
    order by r.id
    limit $3::integer
    for update skip locked
) j
order by j.id
limit $3::integer
