-- Read jobs, live or archived. $1 namespace, $2 ids. Locks nothing.
-- Index: primary key of job; archive (id, finished_us) of every partition.
select
    r.id, q.name, l.task, r.state, r.enqueued_us, r.eligible_us, r.started_us, r.finished_us, r.token, r.failures,
    r.crashes, r.payload::text, r.metadata::text, r.result::text, r.error, r.reason
from (
    select
        j.id, j.line_id, j.state, j.enqueued_us, j.eligible_us, j.started_us, null::bigint as finished_us, j.token,
        j.failures, j.crashes, j.payload, j.metadata, null::json as result, j.error, null::text as reason
    from flowq.job j
    where j.id = any ($2::bigint[]) and j.namespace = $1::text
    union all
    select
        a.id, a.line_id, a.state, a.enqueued_us, a.eligible_us, a.started_us, a.finished_us, a.token, a.failures,
        a.crashes, a.payload, a.metadata, a.result, a.error, a.reason
    from flowq.archive a
    where a.id = any ($2::bigint[]) and a.namespace = $1::text
) r
join flowq.line l on l.id = r.line_id
join flowq.queue q on q.id = l.queue_id
