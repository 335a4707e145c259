-- Insert or replace declared gates. $1 namespace, then arrays: $2 kinds, $3 names, $4 declared_us, $5 params,
-- $6 states, $7 wake_us, $8 drops (sorted by kind and name).
-- Locks: rows that declare_read locked, or new ones that declare_lock keeps others from.
-- Index: gate (namespace, kind, name).
insert into flowq.gate (namespace, kind, name, declared_us, params, state, wake_us, drops)
select $1::text, w.kind, w.name, w.declared_us, w.params::json, w.state::json, w.wake_us, w.drops
from unnest($2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $8::boolean[])
    as w (kind, name, declared_us, params, state, wake_us, drops)
on conflict (namespace, kind, name) do update
set declared_us = excluded.declared_us, params = excluded.params, state = excluded.state, wake_us = excluded.wake_us,
    drops = excluded.drops
returning id
