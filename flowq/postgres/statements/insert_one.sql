-- Insert one job. $1 instant or null, $2 namespace, $3 notify, $4 queue, $5 task, $6 priority, $7 payload, $8 run_at or
-- null, $9 delay, $10 cost, $11 max_retries, $12 metadata, $13 key, $14 unique_hash, $15 window_hash, $16 first_seen,
-- $17 deadline, $18 hits, $19 exempt. A line that does not exist violates NOT NULL.
-- What insert does to a batch, without its arrays: 75 against 100 us. Locks: nothing but the new row.
-- Index: queue (namespace, name), line (queue_id, task, priority), worker (namespace).
insert into flowq.job (
    eligible_us, enqueued_us, cost, queue_id, line_id, priority, hits, exempt, max_retries, first_seen_us, deadline_us,
    namespace, payload, metadata, key, unique_hash, window_hash
)
select
    coalesce($8::bigint, c.us + $9::bigint), c.us, $10::bigint, l.queue_id, l.id, l.priority, $18::integer,
    $19::boolean, $11::integer, $16::bigint, $17::bigint, $2::text, $7::json, $12::json, $13::text, $14::bytea,
    $15::bytea
from (select flowq.now_us($1::bigint) as us) c
left join flowq.line l
    on l.queue_id = (select q.id from flowq.queue q where q.namespace = $2::text and q.name = $4::text)
    and l.task = $5::text and l.priority = $6::integer
returning
    id, eligible_us,
    case when $3::text <> 'off' and (
        select true
        from flowq.worker k
        where k.namespace = $2::text and $4::text = any (k.queues)
            and (k.asleep_until_us > eligible_us or ($3::text = 'workers' and k.lease_until_us > enqueued_us))
        limit 1
    ) then pg_notify('flowq_' || queue_id, '') end is not null
