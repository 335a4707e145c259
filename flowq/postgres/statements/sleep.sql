-- Say until when a worker sleeps, null that it is awake. $1 namespace, $2 worker, $3 instant or null.
-- Locks: the worker's row. Index: primary key; the update is in place.
update flowq.worker w set asleep_until_us = $3::bigint where w.id = $2::bigint and w.namespace = $1::text
returning w.id
