-- Insert jobs. $1 instant or null, $2 namespace, $3 notify; the batch's lines: $4 queues, $5 tasks, $6 priorities;
-- then an array a column, '{}' where every job has the default: $7 number of its line in $4, $8 payload, $9 run_at,
-- $10 delay, $11 cost, $12 max_retries, $13 metadata, $14 key, $15 unique_hash, $16 window_hash, $17 first_seen,
-- $18 deadline, $19 hits, $20 exempt.
-- Index: queue (namespace, name), line (queue_id, task, priority); the LIMIT keeps the planner from reading all lines.
-- Lines are looked up once a batch, and unnest pads short arrays with NULL, so an unused column costs nothing.
-- Locks: nothing but the new rows. A line that does not exist violates NOT NULL; the driver then creates it.
-- Notifies ($3 off, sleepers, workers) at most once a queue, and only if a worker sleeps past what was written, because
-- NOTIFY locks at commit; in a caller's transaction also one that is awake, since it may sleep before the commit.
with clock as materialized (
    select flowq.now_us($1::bigint) as us
),
lines as materialized (
    select array_agg(l.id order by w.n) as ids, array_agg(l.queue_id order by w.n) as queue_ids
    from unnest($4::text[], $5::text[], $6::integer[]) with ordinality as w (queue, task, priority, n)
    left join lateral (
        select f.id, f.queue_id
        from flowq.line f
        where f.queue_id = (select q.id from flowq.queue q where q.namespace = $2::text and q.name = w.queue)
            and f.task = w.task and f.priority = w.priority
        limit 1
    ) l on true
),
written as (
    insert into flowq.job (
        eligible_us, enqueued_us, cost, queue_id, line_id, priority, hits, exempt, max_retries, first_seen_us,
        deadline_us, namespace, payload, metadata, key, unique_hash, window_hash
    )
    select
        coalesce(r.run_at_us, c.us + coalesce(r.delay_us, 0)), c.us, coalesce(r.cost, 1),
        l.queue_ids[coalesce(r.line, 1)], l.ids[coalesce(r.line, 1)], ($6::integer[])[coalesce(r.line, 1)],
        coalesce(r.hits, 1), coalesce(r.exempt, false), r.max_retries, r.first_seen_us,
        r.deadline_us, $2::text, r.payload::json, r.metadata::json, r.key, r.unique_hash, r.window_hash
    from clock c, lines l, unnest(
        $7::integer[], $8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::integer[], $13::text[],
        $14::text[], $15::bytea[], $16::bytea[], $17::bigint[], $18::bigint[], $19::integer[], $20::boolean[]
    ) as r (
        line, payload, run_at_us, delay_us, cost, max_retries, metadata,
        key, unique_hash, window_hash, first_seen_us, deadline_us, hits, exempt
    )
    returning id, eligible_us, queue_id
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
select id, eligible_us, (select count(*) from heard) from written
