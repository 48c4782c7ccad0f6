-- What each worker (or a router about a worker) said about its load.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: samples at or after
-- $to TIMESTAMP: samples before
-- columns: as the table workers; NULL: not said in this sample
SELECT
    ts, deployment, component, role, worker_id, dp_rank, source, inflight,
    active_decode_blocks, active_prefill_tokens, kv_used_blocks, running, waiting, step_s
FROM workers
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
ORDER BY ALL
