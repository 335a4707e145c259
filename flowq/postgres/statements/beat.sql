-- Extend a worker's lease if it is not over. $1 instant or null, $2 namespace, $3 worker, $4 lease.
-- Locks: the worker's row, then reads the clock: after a wait for read_lapsed the lease is over, and stays so.
-- Index: primary key; the update is in place.
with held as materialized (
    select w.id, w.lease_until_us from flowq.worker w where w.id = $3::bigint and w.namespace = $2::text for update
),
live as materialized (
    select h.id, c.us
    from held h
    cross join lateral (select flowq.now_us(case when h.id is not null then $1::bigint end) as us offset 0) c
    where h.lease_until_us > c.us
)
update flowq.worker w
set lease_until_us = l.us + $4::bigint
from live l
where w.id = l.id
returning true
