-- Create the archive's partitions of this week and of the weeks to come. $1 instant or null, $2 weeks.
-- Locks: the archive's default partition, ACCESS EXCLUSIVE, while a partition is attached.
select flowq.create_archive_partitions(flowq.now_us($1::bigint), $2::integer)
