-- Read the due first attempts of a line that cost more than $3 and can be shed. $1 instant or null, $2 line, $4 and $5
-- the place (eligible_us, id) after which, $6 limit. Returns one more than the limit if there are more, oldest first.
-- Locks: as open_lines. Index: job_costly, from that cost on; the rows found are sorted.
with clock as materialized (
    select flowq.now_us(coalesce($1::bigint, nullif(current_setting('flowq.opened_us', true), '')::bigint)) as us
)
select c.id, c.eligible_us, c.cost, c.token = 0, c.exempt
from flowq.job c
where c.line_id = $2::integer and c.state = 'pending' and c.cost > 1 and c.cost > $3::bigint
    and c.token = 0 and not c.exempt
    and (c.eligible_us, c.id) > ($4::bigint, $5::bigint) and c.eligible_us <= (select us from clock)
    and (
        c.window_hash is null
        or (
            select w.id
            from flowq.job w
            where w.id = c.id and w.state = 'pending' and w.eligible_us = c.eligible_us
            for update skip locked
        ) is not null
    )
order by c.eligible_us, c.id
limit $6::integer + 1
