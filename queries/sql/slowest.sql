-- The 50 requests that waited longest for their first token; those that never got one are not among them.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: arrived at or after
-- $to TIMESTAMP: arrived before
-- columns: deployment, request_id, arrived_at, outcome, ttft_s DOUBLE, e2e_s DOUBLE (NULL: did not come to that), prefill_worker UBIGINT,
--     decode_worker UBIGINT, prefill_inflight, input_blocks, overlap_blocks; the slowest first
SELECT
    deployment, request_id, arrived_at, outcome,
    epoch_us(first_token_at - arrived_at) / 1e6 AS ttft_s, epoch_us(finished_at - arrived_at) / 1e6 AS e2e_s,
    prefill_worker, decode_worker, prefill_inflight, input_blocks, overlap_blocks
FROM requests
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR arrived_at >= $from) AND ($to IS NULL OR arrived_at < $to)
    AND first_token_at IS NOT NULL
ORDER BY ttft_s DESC, arrived_at, deployment, request_id
LIMIT 50
