-- Move open debounce windows. $1 instant or null, $2 namespace, $3 notify (as in insert), then arrays: $4 ids,
-- $5 deadlines, $6 eligibilities, $7 hits, $8 payloads (null keeps the stored one).
-- Locks: rows that keys_windows locked already. Index: primary key.
with clock as materialized (
    select flowq.now_us($1::bigint) as us
),
written as (
    update flowq.job j
    set deadline_us = w.deadline_us, eligible_us = w.eligible_us, hits = w.hits,
        payload = coalesce(w.payload::json, j.payload)
    from unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::integer[], $8::text[])
        as w (id, deadline_us, eligible_us, hits, payload)
    where j.id = w.id and j.namespace = $2::text
    returning j.queue_id, j.eligible_us
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
select (select count(*) from written), (select count(*) from heard)
