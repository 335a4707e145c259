-- Concurrency caps: gates without a state. How many run is counted from live leases.

alter table flowq.gate drop constraint gate_kind_check;
alter table flowq.gate add constraint gate_kind_check
    check (kind in ('task_rate', 'queue_rate', 'queue_codel', 'task_concurrency', 'queue_concurrency'));

create function flowq.notify_freed(within text, lines integer[]) returns bigint
language plpgsql volatile parallel unsafe
as $$
begin
    -- Most namespaces have no cap: one probe of the index says so.
    perform from flowq.gate g
    where g.namespace = within and g.kind in ('task_concurrency', 'queue_concurrency') and g.params is not null
    limit 1;
    if not found then
        return 0;
    end if;
    return (
        with freed as (
            select distinct l.queue_id, l.task from flowq.line l where l.id = any (lines)
        ),
        waiting as (
            select q.id, q.name
            from freed f
            join flowq.gate g on g.namespace = within and g.kind = 'task_concurrency' and g.name = f.task
            join flowq.queue q on q.namespace = within
            where exists (select from flowq.line l where l.queue_id = q.id and l.task = f.task)
            union
            select q.id, q.name
            from freed f
            join flowq.queue q on q.id = f.queue_id
            join flowq.gate g on g.namespace = within and g.kind = 'queue_concurrency' and g.name = q.name
        )
        select count(pg_notify('flowq_' || w.id, ''))
        from waiting w
        where exists (
            select from flowq.worker k
            where k.namespace = within and w.name = any (k.queues) and k.asleep_until_us is not null
        )
    );
end
$$;
comment on function flowq.notify_freed is 'Wakes the workers that sleep while a slot is freed under a cap (rule A1).';
