-- Enter a worker, and clear away those whose lease was over a day ago: a job that one of them still runs lapses just as
-- it did. $1 instant or null, $2 namespace, $3 name, $4 queues, $5 slots, $6 lease.
-- Locks: the new row; old rows that nobody else locks. The table has a row for each worker: it is scanned.
with clock as materialized (
    select flowq.now_us($1::bigint) as us
),
cleared as (
    delete from flowq.worker
    where id in (
        select w.id
        from flowq.worker w, clock c
        where w.namespace = $2::text and w.lease_until_us < c.us - 86400000000
        for update of w skip locked
    )
)
insert into flowq.worker (started_us, lease_until_us, slots, namespace, name, queues)
select c.us, c.us + $6::bigint, $5::integer, $2::text, $3::text, $4::text[]
from clock c
returning id
