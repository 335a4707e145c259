-- Read the clock, the gates and the due jobs of a queue, after open_gates. $1 instant or null, $2 namespace, $3 queue,
-- $4 page. Returns a row a line that has a due job, or one row without a line; clock, next eligibility and gates stand
-- in the first.
-- A statement of its own: its snapshot and clock follow the last lock (rule T2). The instant is kept in the transaction
-- for read_line and read_costly, which see the queue as of the same.
-- Locks: of the candidates only jobs with an open debounce window, SKIP LOCKED. A call that slides the window may hold
-- its row for as long as the caller's transaction: waiting for it would hold up the queue. Other pending rows have no
-- other writer while the queue is locked, and locking them would write WAL for claims that start nothing.
-- Under a cap, the jobs that run are counted from live leases: from the workers through job_worker, as many as slots.
-- Index: line (queue_id, ...), then for each line gate (namespace, kind, name), job_line in order, and job_costly for
-- the highest cost; job_ready, one probe a priority, for what falls due next.
with clock as materialized (
    select flowq.now_us($1::bigint) as us
),
place as materialized (
    select
        c.us,
        set_config('flowq.opened_us', c.us::text, true),
        current_setting('flowq.locked_gates')::bigint[] as locked,
        (select q.id from flowq.queue q where q.namespace = $2::text and q.name = $3::text) as queue_id
    from clock c
),
fifo as materialized (
    select
        l.id, l.task, l.priority, g.id as gate_id, k.id as cap_id,
        case when g.id <> all (p.locked) then 1 else $4::integer end as page
    from place p
    join flowq.line l on l.queue_id = p.queue_id
    left join lateral (
        select t.id
        from flowq.gate t
        where t.namespace = $2::text and t.kind = 'task_rate' and t.name = l.task and t.params is not null
        limit 1
    ) g on true
    left join lateral (
        select t.id
        from flowq.gate t
        where t.namespace = $2::text and t.kind = 'task_concurrency' and t.name = l.task and t.params is not null
        limit 1
    ) k on true
    where (
        select true
        from flowq.job j
        where j.line_id = l.id and j.state = 'pending' and j.eligible_us <= p.us
        limit 1
    )
),
line as materialized (
    select
        l.id, l.task, l.priority, l.gate_id, l.cap_id,
        d.ids[1:l.page] as ids, d.eligible[1:l.page] as eligible, d.costs[1:l.page] as costs,
        d.firsts[1:l.page] as firsts, d.exempts[1:l.page] as exempts, cardinality(d.ids) <= l.page as complete,
        coalesce(
            (
                select k.cost
                from flowq.job k
                where k.line_id = l.id and k.state = 'pending' and k.cost > 1
                order by k.cost desc
                limit 1
            ),
            1
        ) as max_cost
    from fifo l
    cross join lateral (
        select
            array_agg(j.id) as ids, array_agg(j.eligible_us) as eligible, array_agg(j.cost) as costs,
            array_agg(j.token = 0) as firsts, array_agg(j.exempt) as exempts
        from (
            select c.id, c.eligible_us, c.cost, c.token, c.exempt
            from flowq.job c
            where c.line_id = l.id and c.state = 'pending' and c.eligible_us <= (select us from place)
                and (
                    c.window_hash is null
                    or (
                        select w.id
                        from flowq.job w
                        where w.id = c.id and w.state = 'pending' and w.eligible_us = c.eligible_us
                        for update skip locked
                    ) is not null
                )
            order by c.eligible_us, c.id
            limit l.page + 1
        ) j
    ) d
    where d.ids is not null
)
select
    p.us,
    (
        select min(n.eligible_us)
        from (select distinct l.priority from flowq.line l where l.queue_id = (select queue_id from place)) c
        cross join lateral (
            select r.eligible_us
            from flowq.job r
            where r.queue_id = (select queue_id from place) and r.priority = c.priority and r.state = 'pending'
                and r.eligible_us > (select us from place)
            order by r.eligible_us
            limit 1
        ) n
    ),
    case when row_number() over (order by l.priority desc, l.id) = 1 then (
        select json_agg(
            json_build_array(
                g.id, g.kind, g.name, g.params, g.state, g.id = any (p.locked), coalesce(b.running, 0), b.lapses_us
            ) order by g.id
        )::text
        from flowq.gate g
        left join lateral (
            select count(*) as running, min(w.lease_until_us) as lapses_us
            from flowq.worker w
            join flowq.job r on r.worker_id = w.id
            where g.kind in ('task_concurrency', 'queue_concurrency')
                and w.namespace = $2::text and w.lease_until_us > (select us from place)
                and case
                    when g.kind = 'queue_concurrency' then r.queue_id = (select queue_id from place)
                    else (select f.task from flowq.line f where f.id = r.line_id) = g.name
                end
        ) b on true
        where g.params is not null and g.id = any (array(
            select o.id from flowq.gate o where o.namespace = $2::text and o.kind = 'queue_codel' and o.name = $3::text
            union all
            select o.id from flowq.gate o where o.namespace = $2::text and o.kind = 'queue_rate' and o.name = $3::text
            union all
            select o.id
            from flowq.gate o
            where o.namespace = $2::text and o.kind = 'queue_concurrency' and o.name = $3::text
            union all
            select d.gate_id from line d
            union all
            select d.cap_id from line d
        ))
    ) end,
    l.id, l.task, l.priority, l.ids, l.eligible, l.costs, l.firsts, l.exempts, l.complete, l.max_cost
from place p
left join line l on true
order by l.priority desc, l.id
