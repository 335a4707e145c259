-- Write gate states. Arrays: $1 ids, $2 states, $3 the instants before which nothing passes.
-- Locks: gates that open_gates locked already. Index: primary key. In place: no index has these columns.
update flowq.gate g
set state = w.state::json, wake_us = w.wake_us
from unnest($1::bigint[], $2::text[], $3::bigint[]) as w (id, state, wake_us)
where g.id = w.id
returning g.id
