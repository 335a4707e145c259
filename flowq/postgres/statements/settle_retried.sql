-- Put attempts back to pending. $1 instant or null, $2 namespace, $3 notify, then arrays: $4 ids (sorted), $5 tokens,
-- $6 delays, $7 errors, $8 whether it crashed. Returns the ids whose lease was still held.
-- Locks: the jobs' rows, in the order of the ids. Index: primary key, as in settle_final.
with clock as materialized (
    select flowq.now_us($1::bigint) as us
),
written as (
    update flowq.job j
    set state = 'pending', eligible_us = c.us + w.delay_us, worker_id = null, error = w.error,
        failures = j.failures + (not w.crashed)::integer, crashes = j.crashes + w.crashed::integer
    from clock c, unnest($4::bigint[], $5::integer[], $6::bigint[], $7::text[], $8::boolean[])
        as w (id, token, delay_us, error, crashed)
    where j.id = w.id and j.token = w.token and j.namespace = $2::text and j.state = 'running'
    returning j.id, j.queue_id, j.line_id, j.eligible_us
),
heard as (
    select pg_notify('flowq_' || w.queue_id, '')
    from (select queue_id, min(eligible_us) as first_us from written group by queue_id) w
    where $3::text <> 'off' and (
        select true
        from flowq.worker k
        where k.namespace = $2::text
            and (select q.name from flowq.queue q where q.id = w.queue_id) = any (k.queues)
            and (
                k.asleep_until_us > w.first_us
                or ($3::text = 'workers' and k.lease_until_us > (select us from clock))
            )
        limit 1
    )
)
select
    id, (select count(*) from heard),
    case when $3::text <> 'off' then (select flowq.notify_freed($2::text, array_agg(line_id)) from written) end
from written
