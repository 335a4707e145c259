-- Lock and read gates, after declare_lock. $1 namespace, $2 kinds, $3 names.
-- Locks: the gates' rows FOR NO KEY UPDATE, ordered by id as in open_gates, so the two don't deadlock.
-- Index: gate (namespace, kind, name).
select g.kind, g.name, g.id, g.declared_us, g.params::text, g.state::text
from flowq.gate g
where g.id = any (array(
    select f.id
    from unnest($2::text[], $3::text[]) as w (kind, name)
    join flowq.gate f on f.namespace = $1::text and f.kind = w.kind and f.name = w.name
))
order by g.id
for no key update
