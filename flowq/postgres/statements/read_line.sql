-- Read on in a line. $1 instant or null, $2 line, $3 and $4 the place (eligible_us, id) after which, $5 limit.
-- Returns one more than the limit if there are more. Locks: as open_lines. Index: job_line, in order, from that place.
with clock as materialized (
    select flowq.now_us(coalesce($1::bigint, nullif(current_setting('flowq.opened_us', true), '')::bigint)) as us
)
select c.id, c.eligible_us, c.cost, c.token = 0, c.exempt
from flowq.job c
where c.line_id = $2::integer and c.state = 'pending' and c.eligible_us <= (select us from clock)
    and (c.eligible_us, c.id) > ($3::bigint, $4::bigint)
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
limit $5::integer + 1
