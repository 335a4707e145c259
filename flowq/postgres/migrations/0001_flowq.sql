-- The schema of flowq: words (queue, line, gate, worker), live jobs, and what jobs leave behind.
--
-- Instants are bigint microseconds since 1970. Jobs are `json`, not `jsonb`, so that a handler reads exactly the text
-- that was enqueued (jsonb rewrites 1e16 to an integer). Live and final jobs are apart so that claims stay flat.
-- No foreign keys: lines and queues are never deleted, and every insert reads the line that it names.

create function flowq.now_us(at bigint) returns bigint
language sql volatile parallel unsafe
as $$ select coalesce(at, (extract(epoch from clock_timestamp()) * 1000000)::bigint) $$;
comment on function flowq.now_us is 'The only clock: the given instant, or else the server''s, in microseconds.';

create function flowq.require_count(got bigint, want bigint) returns bigint
language plpgsql volatile parallel unsafe
as $$
begin
    if got <> want then
        raise exception 'jobs moved since they were read: % of % are as they were', got, want
            using errcode = 'FQ001';
    end if;
    return got;
end
$$;
comment on function flowq.require_count is 'Refuses (FQ001) a write that met fewer rows than were read before.';


create table flowq.queue (
    id integer generated always as identity primary key,
    namespace text not null,
    name text not null,
    unique (namespace, name)
);
comment on table flowq.queue is 'A queue; its row is the lock that a gated claim holds.';

create table flowq.line (
    id integer generated always as identity primary key,
    queue_id integer not null,
    task text not null,
    priority integer not null,
    unique (queue_id, task, priority)
);
comment on table flowq.line is 'The FIFO of the jobs of one (queue, task, priority).';
-- One index: with a second one that begins alike, a plan made over few lines might look lines up by the wrong one.

create table flowq.gate (
    id bigint generated always as identity primary key,
    declared_us bigint not null,
    wake_us bigint not null,
    drops boolean not null,
    namespace text not null,
    kind text not null check (kind in ('task_rate', 'queue_rate', 'queue_codel')),
    name text not null,
    params json,
    state json,
    unique (namespace, kind, name)
) with (
    fillfactor = 70,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.1
);
comment on table flowq.gate is 'A declared policy and its state. Its states change in place: no index on them.';
comment on column flowq.gate.params is 'NULL: declared to be absent.';
comment on column flowq.gate.wake_us is 'Before this instant the gate lets nothing pass.';
comment on column flowq.gate.drops is 'Its closed lanes are still read, because their excess is shed.';

create table flowq.worker (
    id bigint generated always as identity primary key,
    started_us bigint not null,
    lease_until_us bigint not null,
    asleep_until_us bigint,
    slots integer not null,
    namespace text not null,
    name text not null,
    queues text[] not null
) with (
    fillfactor = 50,
    autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_scale_factor = 0.1
);
comment on table flowq.worker is 'A worker, and the one lease that covers all its jobs: a heartbeat updates this row.';
comment on column flowq.worker.asleep_until_us is 'NULL: awake. Else what falls due before it is worth a NOTIFY.';
create index worker_namespace on flowq.worker (namespace);


create table flowq.job (
    id bigint generated always as identity,
    eligible_us bigint not null,
    enqueued_us bigint not null,
    cost bigint not null,
    queue_id integer not null,
    line_id integer not null,
    priority integer not null,
    token integer not null default 0,
    failures integer not null default 0,
    crashes integer not null default 0,
    hits integer not null,
    exempt boolean not null,
    max_retries integer,
    worker_id bigint,
    started_us bigint,
    first_seen_us bigint,
    deadline_us bigint,
    namespace text not null,
    state text not null default 'pending',
    payload json not null,
    metadata json,
    key text,
    unique_hash bytea,
    window_hash bytea,
    error text,
    primary key (id),
    -- Few and broad: PostgreSQL parses each anew for every statement, 1.5 us apiece of a single insert's 70.
    constraint job_state check (state in ('blocked', 'pending', 'running')),
    constraint job_cost check (cost >= 1),
    constraint job_running check (
        case when state = 'running' then worker_id is not null and token > 0 and started_us is not null
            else worker_id is null end
    ),
    constraint job_window check (
        window_hash is null
        or (state = 'pending' and token = 0 and first_seen_us is not null and deadline_us is not null)
    )
) with (
    fillfactor = 90,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_threshold = 20000,
    autovacuum_analyze_threshold = 5000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);
comment on table flowq.job is 'Live jobs only; one that ends leaves for the archive in the same statement.';
comment on column flowq.job.priority is 'That of its line, for the index job_ready.';
comment on column flowq.job.token is 'The fencing token: how often it was started.';
comment on column flowq.job.window_hash is 'The debounce key, until the first start closes the window.';

create index job_ready on flowq.job (queue_id, priority, eligible_us, id) where state = 'pending';
create index job_line on flowq.job (line_id, eligible_us, id) where state = 'pending';
create index job_costly on flowq.job (line_id, cost) where state = 'pending' and cost > 1;
-- By worker_id and not by state: a statement that says state = 'running' must find its rows by primary key, and can't
-- be planned over this index, whose entries are mostly dead.
create index job_worker on flowq.job (worker_id) where worker_id is not null;
create unique index job_unique_key on flowq.job (namespace, unique_hash) where unique_hash is not null;
create unique index job_window_key on flowq.job (namespace, window_hash) where window_hash is not null;


create table flowq.archive (
    id bigint not null,
    eligible_us bigint not null,
    enqueued_us bigint not null,
    finished_us bigint not null,
    cost bigint not null,
    line_id integer not null,
    token integer not null,
    failures integer not null,
    crashes integer not null,
    max_retries integer,
    started_us bigint,
    worker_id bigint,
    namespace text not null,
    state text not null check (state in ('succeeded', 'failed', 'shed', 'cancelled', 'expired')),
    payload json not null,
    metadata json,
    key text,
    result json,
    error text,
    reason text,
    primary key (id, finished_us)
) partition by range (finished_us);
comment on table flowq.archive is 'Final jobs, by the week in which they ended. Their keys are for people.';

create table flowq.archive_default partition of flowq.archive default;

create function flowq.create_archive_partitions(now_us bigint, weeks integer) returns integer
language plpgsql volatile parallel unsafe
as $$
declare
    week_us constant bigint := 604800000000;
    from_us bigint := now_us - now_us % week_us;
    part text;
    created integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('flowq.create_archive_partitions', 0));
    for i in 0 .. weeks loop
        part := to_char(to_timestamp(from_us / 1000000) at time zone 'UTC', '"archive_"YYYY_MM_DD');
        if to_regclass('flowq.' || quote_ident(part)) is null then
            begin
                execute format('create table flowq.%I (like flowq.archive including all)', part);
                execute format(
                    'alter table flowq.archive attach partition flowq.%I for values from (%s) to (%s)',
                    part, from_us, from_us + week_us
                );
                created := created + 1;
            exception when check_violation then
                null;  -- the default partition holds jobs of that week already, and goes on holding them
            end;
        end if;
        from_us := from_us + week_us;
    end loop;
    return created;
end
$$;
comment on function flowq.create_archive_partitions is 'Creates the partitions of this week and the weeks after it.';

create table flowq.dead_letter (
    job_id bigint primary key,
    finished_us bigint not null,
    line_id integer not null,
    shed boolean not null,
    namespace text not null,
    reason text,
    error text not null,
    metadata json,
    check (shed = (reason is not null))
);
comment on table flowq.dead_letter is 'Failed and shed jobs to look at or retry; the job itself is in the archive.';
comment on column flowq.dead_letter.finished_us is 'With job_id the key of the archived job.';
comment on column flowq.dead_letter.metadata is 'The marker of what dropped it, not the job''s own.';
create index dead_letter_newest on flowq.dead_letter (namespace, job_id);
