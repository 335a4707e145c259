-- Lock keys. $1 the first 8 bytes of each hash, sorted and distinct.
-- Locks: transaction-scoped advisory locks, in the order of the array, so overlapping batches don't deadlock. A
-- statement of its own: what is read next must be read by a snapshot that follows the wait.
select count(pg_advisory_xact_lock(k)) from unnest($1::bigint[]) as k
