-- Start the first due jobs of a queue without gates. $1 instant or null, $2 namespace, $3 queue, $4 n, $5 worker.
-- Returns the started jobs in dispatch order, or one row without a job; each row has the clock, whether the queue is
-- gated (then nothing is started), and the next future eligibility.
-- Locks: the picked rows, SKIP LOCKED, lazily: the outer LIMIT ends the walk, so a lower priority is not touched
-- while a higher one has jobs. Waits for nobody.
-- Index: job_ready, one range a priority with eligible_us as an index condition, so what is scheduled is not walked;
-- then the primary key. Gates are found from their own side, by (namespace, kind): usually there are none.
-- Alternatives measured before: ORDER BY over all priorities sorts the backlog; a volatile clock in the condition is no
-- index condition (0.96 -> 35 ms).
with clock as materialized (
    select flowq.now_us($1::bigint) as us
),
place as materialized (
    select
        c.us,
        (select q.id from flowq.queue q where q.namespace = $2::text and q.name = $3::text) as queue_id
    from clock c
),
gated as materialized (
    select coalesce(
        (
            select true
            from flowq.gate g
            where g.namespace = $2::text and g.kind = 'queue_codel' and g.name = $3::text and g.params is not null
            limit 1
        ),
        (
            select true
            from flowq.gate g
            where g.namespace = $2::text and g.kind = 'queue_rate' and g.name = $3::text and g.params is not null
            limit 1
        ),
        (
            select true
            from flowq.gate g
            where g.namespace = $2::text and g.kind = 'queue_concurrency' and g.name = $3::text
                and g.params is not null
            limit 1
        ),
        (
            select true
            from flowq.gate g
            where g.namespace = $2::text and g.kind = 'task_concurrency' and g.params is not null
                and (
                    select true
                    from flowq.line l
                    where l.queue_id = (select queue_id from place) and l.task = g.name
                    limit 1
                )
            limit 1
        ),
        (
            select true
            from flowq.gate g
            where g.namespace = $2::text and g.kind = 'task_rate' and g.params is not null
                and (
                    select true
                    from flowq.line l
                    where l.queue_id = (select queue_id from place) and l.task = g.name
                    limit 1
                )
            limit 1
        ),
        false
    ) as closed
),
class as materialized (
    select distinct l.priority
    from flowq.line l
    where l.queue_id = (select queue_id from place)
    order by l.priority desc
),
started as (
    update flowq.job j
    set state = 'running', token = j.token + 1, started_us = (select us from clock), worker_id = $5::bigint,
        window_hash = null
    where j.id = any (array(
        select p.id
        from class c
        cross join lateral (
            select r.id
            from flowq.job r
            where r.queue_id = (select queue_id from place) and r.priority = c.priority and r.state = 'pending'
                and r.eligible_us <= (select us from clock)
            order by r.eligible_us, r.id
            limit $4::integer
            for update skip locked
        ) p
        where not (select closed from gated)
        limit $4::integer
    ))
    returning
        j.id, j.line_id, j.payload::text as payload, j.token, j.failures, j.crashes, j.max_retries, j.eligible_us,
        j.priority
)
select
    s.id, l.task, s.payload, s.token, s.failures, s.crashes, s.max_retries, s.eligible_us, s.priority,
    p.us, g.closed,
    (
        select min(n.eligible_us)
        from class c
        cross join lateral (
            select r.eligible_us
            from flowq.job r
            where r.queue_id = (select queue_id from place) and r.priority = c.priority and r.state = 'pending'
                and r.eligible_us > (select us from clock)
            order by r.eligible_us
            limit 1
        ) n
    )
from place p
cross join gated g
left join (started s join flowq.line l on l.id = s.line_id) on true
order by s.priority desc, s.eligible_us, s.id
