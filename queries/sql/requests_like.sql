-- Requests whose id begins with a text, the newest first: the search box of the drill-down.
-- $deployment VARCHAR: one deployment; NULL: all
-- $prefix VARCHAR required: what the id begins with; at most 50 are given
-- columns: deployment, request_id, arrived_at, outcome, ttft_s DOUBLE, e2e_s DOUBLE (NULL: did not come to that)
SELECT
    deployment, request_id, arrived_at, outcome,
    epoch_us(first_token_at - arrived_at) / 1e6 AS ttft_s, epoch_us(finished_at - arrived_at) / 1e6 AS e2e_s
FROM requests
WHERE ($deployment IS NULL OR deployment = $deployment) AND starts_with(request_id, $prefix)
ORDER BY arrived_at DESC, deployment, request_id
LIMIT 50
