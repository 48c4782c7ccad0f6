-- Load of each worker against its load in the cheapest placement of the same requests, every 5 s.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: rows at or after
-- $to TIMESTAMP: rows before
-- $step_s DOUBLE required: width of a bin, counted from 1970-01-01
-- columns: ts TIMESTAMP (start of the bin), deployment, role, component (the role again), worker_id UBIGINT, dp_rank,
--   inflight and optimum DOUBLE (requests present, mean of the bin)
SELECT
    make_timestamp((floor(epoch_us(g.ts) / ($step_s * 1e6)) * $step_s * 1e6)::BIGINT) AS ts, deployment, role, role AS component,
    worker_id, dp_rank, avg(load) AS inflight, avg(optimum) AS optimum
FROM game_loads AS g
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR g.ts >= $from) AND ($to IS NULL OR g.ts < $to)
GROUP BY 1, deployment, role, worker_id, dp_rank
ORDER BY ts, deployment, role, worker_id, dp_rank
