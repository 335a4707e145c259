-- End attempts that succeeded or are dead: archive each, dead-letter the dead. $1 instant or null, $2 namespace, then
-- arrays: $3 ids (sorted), $4 tokens, $5 results, $6 errors (null: it succeeded), $7 markers for the dead letters,
-- $8 whether it crashed, $9 notify. Wakes who waits for a slot under a cap. Returns the ids whose lease was still held.
-- Locks: the jobs' rows, in the order of the ids. Index: primary key, whatever the size: state = 'running' matches no
-- partial index (joined to an index of running jobs this was quadratic, 14.5 against 4.7 us a job).
with clock as materialized (
    select flowq.now_us($1::bigint) as us
),
gone as (
    delete from flowq.job j
    using unnest($3::bigint[], $4::integer[], $5::text[], $6::text[], $7::text[], $8::boolean[])
        as w (id, token, result, error, marker, crashed)
    where j.id = w.id and j.token = w.token and j.namespace = $2::text and j.state = 'running'
    returning j.*, w.result, w.error as why, w.marker, coalesce(w.crashed, false) as crashed
),
archived as (
    insert into flowq.archive (
        id, eligible_us, enqueued_us, finished_us, cost, line_id, token, failures, crashes, max_retries, started_us,
        worker_id, namespace, state, payload, metadata, key, result, error
    )
    select
        g.id, g.eligible_us, g.enqueued_us, c.us, g.cost, g.line_id, g.token,
        g.failures + (g.why is not null and not g.crashed)::integer, g.crashes + g.crashed::integer, g.max_retries,
        g.started_us, g.worker_id, g.namespace, case when g.why is null then 'succeeded' else 'failed' end, g.payload,
        g.metadata, g.key, g.result::json, g.why
    from gone g, clock c
),
lettered as (
    insert into flowq.dead_letter (job_id, finished_us, line_id, shed, namespace, error, metadata)
    select g.id, c.us, g.line_id, false, g.namespace, g.why, g.marker::json
    from gone g, clock c
    where g.why is not null
)
select
    id,
    case when $9::text <> 'off' then (select flowq.notify_freed($2::text, array_agg(line_id)) from gone) end
from gone
