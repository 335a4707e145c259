-- Lock and read open debounce windows. $1 namespace, $2 hashes.
-- Locks: the jobs' rows, so that none starts; a start that came first makes the row no match after the wait.
-- Keys are locked before, so no two transactions meet here in opposite orders. Index: job_window_key.
select j.window_hash, j.id, j.first_seen_us, j.deadline_us, j.eligible_us, j.hits
from flowq.job j
where j.namespace = $1::text and j.window_hash = any ($2::bytea[]) and j.state = 'pending' and j.token = 0
order by j.id
for update
