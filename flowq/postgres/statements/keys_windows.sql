-- Lock and read open debounce windows. $1 namespace, $2 hashes.
-- Locks: the jobs' rows, so that none starts. A start that came first has cleared the hash, so after the wait the row
-- is no match; that is the only condition, because state = 'pending' would let a plan walk the ready jobs.
-- Keys are locked before, so no two transactions meet here in opposite orders. Index: job_window_key.
select j.window_hash, j.id, j.first_seen_us, j.deadline_us, j.eligible_us, j.hits
from flowq.job j
where j.namespace = $1::text and j.window_hash = any ($2::bytea[])
order by j.id
for update
