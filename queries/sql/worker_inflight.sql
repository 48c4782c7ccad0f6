-- Requests in flight on each worker over time, as the events tell: who is hot.
-- Steps that are multiples of 10 s or 60 s are answered from rollups, and so reach further back than raw rows.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: samples at or after
-- $to TIMESTAMP: samples before
-- $step_s DOUBLE required: width of a bin, counted from 1970-01-01
-- columns: ts TIMESTAMP (start of the bin), deployment, role, component, worker_id UBIGINT, dp_rank, inflight DOUBLE (mean of the bin)
WITH raw AS (
    -- What rollups do not tell: everything where the step fits no bin of theirs, else the two ends that cut one.
    -- The bounds are written out, not joined: only as constants do they keep DuckDB from reading every row.
    SELECT * FROM workers WHERE $step_s % 10 <> 0 AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
    UNION ALL
    SELECT * FROM workers WHERE $step_s % 10 = 0 AND ts >= $from AND ts < least(bin_after($from, $step_s), $to)
    UNION ALL
    SELECT * FROM workers WHERE $step_s % 10 = 0 AND ts < $to AND ts >= greatest(bin_before($to, $step_s), bin_after($from, $step_s))
),
parts AS (
    SELECT r.ts, r.deployment, last_at, role, component, worker_id, dp_rank, inflight, inflight_n
    FROM worker_rollups AS r
    WHERE r.step_s = bin_width($step_s)
        AND ($from IS NULL OR r.ts >= bin_after($from, $step_s))
        AND ($to IS NULL OR r.ts < bin_before($to, $step_s))
        AND ($step_s % 10 = 0 OR r.ts < (SELECT raw_from FROM retention))
        AND ($deployment IS NULL OR r.deployment = $deployment)
    UNION ALL
    SELECT w.ts, w.deployment, w.ts AS last_at, role, component, worker_id, dp_rank, inflight, 1 AS inflight_n
    FROM raw AS w
    WHERE source = 'events' AND inflight IS NOT NULL AND ($deployment IS NULL OR w.deployment = $deployment)
)
SELECT
    make_timestamp((floor(epoch_us(p.ts) / ($step_s * 1e6)) * $step_s * 1e6)::BIGINT) AS ts, deployment,
    arg_max(role, last_at) AS role, component, worker_id, dp_rank, sum(inflight) / sum(inflight_n) AS inflight
FROM parts AS p
GROUP BY 1, deployment, component, worker_id, dp_rank
ORDER BY ts, deployment, role, component, worker_id, dp_rank
