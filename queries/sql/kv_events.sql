-- KV cache events, each once.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: at or after
-- $to TIMESTAMP: before
-- columns: as the table kv_events
SELECT ts, deployment, component, worker_id, dp_rank, event_id, kind, parent_hash, block_hashes, tier
FROM kv_events
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
ORDER BY ALL
