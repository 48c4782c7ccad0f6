-- Requests in flight on each worker over time, as the events tell: who is hot.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: samples at or after
-- $to TIMESTAMP: samples before
-- $step_s DOUBLE required: width of a bin, counted from 1970-01-01
-- columns: ts TIMESTAMP (start of the bin), deployment, role, component, worker_id UBIGINT, dp_rank, inflight DOUBLE (mean of the bin)
SELECT
    make_timestamp((floor(epoch_us(w.ts) / ($step_s * 1e6)) * $step_s * 1e6)::BIGINT) AS ts, deployment,
    arg_max(role, w.ts) AS role, component, worker_id, dp_rank, avg(inflight) AS inflight
FROM workers AS w
WHERE source = 'events' AND inflight IS NOT NULL
    AND ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR w.ts >= $from) AND ($to IS NULL OR w.ts < $to)
GROUP BY 1, deployment, component, worker_id, dp_rank
ORDER BY ts, deployment, role, component, worker_id, dp_rank
