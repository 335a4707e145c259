-- Bound the waits for locks of this transaction. $1 lock_timeout. The former value is kept for lock_timeout_reset.
select
    set_config('flowq.lock_timeout', current_setting('lock_timeout'), true),
    set_config('lock_timeout', $1::text, true)
