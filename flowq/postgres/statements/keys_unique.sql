-- Read the live jobs that hold unique keys. $1 namespace, $2 hashes.
-- Locks nothing: the keys are locked, and no state of the job matters. Index: job_unique_key.
select j.unique_hash, j.id, j.eligible_us
from flowq.job j
where j.namespace = $1::text and j.unique_hash = any ($2::bytea[])
