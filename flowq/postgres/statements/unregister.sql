-- Remove a worker; jobs that it still runs lapse. $1 namespace, $2 worker. Locks: the worker's row.
delete from flowq.worker w where w.id = $2::bigint and w.namespace = $1::text
returning w.id
