-- One request: where it was routed, what it found there, and when each stage ended.
-- $deployment VARCHAR: one deployment; NULL: all
-- $request_id VARCHAR required: the whole id
-- columns: as the table requests; unknown is NULL
SELECT
    deployment, request_id, model, prefill_worker, prefill_dp_rank, decode_worker, decode_dp_rank,
    arrived_at, prefill_done_at, decode_started_at, first_token_at, finished_at,
    input_blocks, overlap_blocks, prefill_inflight, decode_inflight, tau, omega, regime, outcome
FROM requests
WHERE ($deployment IS NULL OR deployment = $deployment) AND request_id = $request_id
ORDER BY arrived_at, deployment
