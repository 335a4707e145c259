-- Read the clock, after the locks of earlier statements. $1 instant or null.
select flowq.now_us($1::bigint)
