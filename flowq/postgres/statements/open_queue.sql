-- Lock a queue for a gated claim. $1 namespace, $2 queue.
-- Locks: the queue's row FOR NO KEY UPDATE, before any gate: two claims of a queue follow each other.
-- Index: queue (namespace, name).
select q.id from flowq.queue q where q.namespace = $1::text and q.name = $2::text for no key update
