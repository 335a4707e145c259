-- Lock the gates that a claim may change, and remember which in the transaction. $1 instant or null, $2 namespace,
-- $3 queue.
-- Locks: gates FOR NO KEY UPDATE, ordered by id: the queue's own, and of the tasks that have a due job here those
-- that are open or drop, and their concurrency caps. The clock may precede the wait: a gate that closed meanwhile is rechecked by its row.
-- Index: line (queue_id, ...), job_line (one probe a line), gate (namespace, kind, name), primary key.
with place as materialized (
    select
        flowq.now_us($1::bigint) as us,
        (select q.id from flowq.queue q where q.namespace = $2::text and q.name = $3::text) as queue_id
),
met as materialized (
    select g.id from flowq.gate g where g.namespace = $2::text and g.kind = 'queue_codel' and g.name = $3::text
    union all
    select g.id from flowq.gate g where g.namespace = $2::text and g.kind = 'queue_rate' and g.name = $3::text
    union all
    select g.id from flowq.gate g where g.namespace = $2::text and g.kind = 'queue_concurrency' and g.name = $3::text
    union all
    select g.id
    from flowq.line l
    cross join lateral (
        select j.id
        from flowq.job j
        where j.line_id = l.id and j.state = 'pending' and j.eligible_us <= (select us from place)
        limit 1
    ) due
    cross join lateral (
        (
            select t.id
            from flowq.gate t
            where t.namespace = $2::text and t.kind = 'task_rate' and t.name = l.task
            limit 1
        )
        union all
        (
            select t.id
            from flowq.gate t
            where t.namespace = $2::text and t.kind = 'task_concurrency' and t.name = l.task
            limit 1
        )
    ) g
    where l.queue_id = (select queue_id from place)
),
locked as materialized (
    select g.id
    from flowq.gate g
    where g.id = any (array(select id from met)) and g.params is not null
        and (g.kind <> 'task_rate' or g.drops or g.wake_us <= (select us from place))
    order by g.id
    for no key update
)
select set_config('flowq.locked_gates', coalesce(array_agg(id)::text, '{}'), true) from locked
