-- Move open debounce windows. $1 namespace, $2 notify, then arrays: $3 ids, $4 deadlines,
-- $5 eligibilities, $6 hits, $7 payloads (null keeps the stored one).
-- Locks: rows that keys_windows locked already. Index: primary key.
with written as (
    update flowq.job j
    set deadline_us = w.deadline_us, eligible_us = w.eligible_us, hits = w.hits,
        payload = coalesce(w.payload::json, j.payload)
    from unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::text[])
        as w (id, deadline_us, eligible_us, hits, payload)
    where j.id = w.id and j.namespace = $1::text
    returning j.queue_id, j.eligible_us
),
heard as (
    select pg_notify('flowq_' || w.queue_id, '')
    from (select queue_id, min(eligible_us) as first_us from written group by queue_id) w
    where $2::boolean and exists (
        select from flowq.worker k
        where k.namespace = $1::text and k.asleep_until_us > w.first_us
            and (select q.name from flowq.queue q where q.id = w.queue_id) = any (k.queues)
    )
)
select (select count(*) from written), (select count(*) from heard)
