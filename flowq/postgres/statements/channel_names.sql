-- The channels on which queues are notified. $1 namespace, $2 names. Index: queue (namespace, name).
select q.name, 'flowq_' || q.id from flowq.queue q where q.namespace = $1::text and q.name = any ($2::text[])
