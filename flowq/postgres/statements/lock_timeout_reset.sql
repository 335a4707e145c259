-- Give the transaction the lock_timeout back that it had before lock_timeout_set.
select set_config('lock_timeout', current_setting('flowq.lock_timeout'), true)
