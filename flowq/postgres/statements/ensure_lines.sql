-- Create the lines that are missing, after ensure_queues. $1 namespace, $2 queues, $3 tasks, $4 priorities (sorted).
-- A statement of its own, so that its snapshot shows queues that another transaction created meanwhile.
-- Locks: the entries it inserts, in sorted order. Index: line (queue_id, task, priority).
insert into flowq.line (queue_id, task, priority)
select q.id, w.task, w.priority
from unnest($2::text[], $3::text[], $4::integer[]) as w (queue, task, priority)
join flowq.queue q on q.namespace = $1::text and q.name = w.queue
where not exists (
    select from flowq.line l where l.queue_id = q.id and l.task = w.task and l.priority = w.priority
)
order by q.id, w.task, w.priority
on conflict (queue_id, task, priority) do nothing
returning id
