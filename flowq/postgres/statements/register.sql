-- Enter a worker. $1 instant or null, $2 namespace, $3 name, $4 queues, $5 slots, $6 lease. Locks: the new row.
insert into flowq.worker (started_us, lease_until_us, slots, namespace, name, queues)
select c.us, c.us + $6::bigint, $5::integer, $2::text, $3::text, $4::text[]
from (select flowq.now_us($1::bigint) as us) c
returning id
