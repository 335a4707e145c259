-- Lock gates for a declaration, those included that do not exist yet. $1 namespace; $2 kinds, $3 names (sorted).
-- Locks: transaction-scoped advisory locks by name, in the order of the arrays. Claims don't take these: they meet the
-- declaration at the gates' rows.
select count(pg_advisory_xact_lock(hashtextextended(concat_ws(chr(1), 'flowq.gate', $1::text, w.kind, w.name), 0)))
from unnest($2::text[], $3::text[]) as w (kind, name)
