-- Shed chosen jobs: archive and dead-letter each. $1 instant, $2 namespace, then arrays: $3 ids, $4 the
-- eligibilities that were read, $5 reasons, $6 errors, $7 markers for the dead letters.
-- Refuses (FQ001) unless each is pending with that eligibility. The archived job keeps its own metadata; it has a start
-- only if an attempt before this one was (rule D2).
-- Locks: the jobs' rows. Index: primary key.
with gone as (
    delete from flowq.job j
    using unnest($3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[])
        as w (id, eligible_us, reason, error, marker)
    where j.id = w.id and j.eligible_us = w.eligible_us and j.namespace = $2::text and j.state = 'pending'
    returning j.*, w.reason, w.error as why, w.marker
),
archived as (
    insert into flowq.archive (
        id, eligible_us, enqueued_us, started_us, finished_us, cost, line_id, token, failures, crashes, max_retries,
        namespace, state, payload, metadata, key, error, reason
    )
    select
        g.id, g.eligible_us, g.enqueued_us, g.started_us, $1::bigint, g.cost, g.line_id, g.token, g.failures, g.crashes,
        g.max_retries, g.namespace, 'shed', g.payload, g.metadata, g.key, g.why, g.reason
    from gone g
),
lettered as (
    insert into flowq.dead_letter (job_id, finished_us, line_id, shed, namespace, reason, error, metadata)
    select g.id, $1::bigint, g.line_id, true, g.namespace, g.reason, g.why, g.marker::json
    from gone g
)
select flowq.require_count((select count(*) from gone), cardinality($3::bigint[]))
