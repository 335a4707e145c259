-- Read dead letters, the newest first. $1 namespace, $2 limit, $3 smaller ids than this or null, $4 task or null,
-- $5 reason or null. Locks nothing. The last failure of a job that failed for good was not retried.
-- Index: dead_letter (namespace, job_id), backward; archive (id, finished_us), one partition a letter.
select
    d.job_id, q.name, l.task, d.error, d.reason, d.metadata::text, a.payload::text,
    greatest(0, a.failures - (not d.shed)::integer), a.started_us,
    d.finished_us
from flowq.dead_letter d
join flowq.archive a on a.id = d.job_id and a.finished_us = d.finished_us
join flowq.line l on l.id = d.line_id
join flowq.queue q on q.id = l.queue_id
where d.namespace = $1::text and d.job_id < coalesce($3::bigint, 9223372036854775807)
    and ($4::text is null or l.task = $4::text) and ($5::text is null or d.reason = $5::text)
order by d.job_id desc
limit $2::integer
