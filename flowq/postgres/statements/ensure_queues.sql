-- Create the queues that are missing. $1 namespace, $2 names (sorted, distinct).
-- Locks: the entries it inserts, in the order of the names; another transaction that creates one of them waits.
-- Index: queue (namespace, name). Known names are filtered out first: a conflict would burn an id.
insert into flowq.queue (namespace, name)
select $1::text, w.name
from unnest($2::text[]) as w (name)
where not exists (select from flowq.queue q where q.namespace = $1::text and q.name = w.name)
order by w.name
on conflict (namespace, name) do nothing
returning id
