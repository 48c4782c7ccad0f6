-- The signals of a deployment, one row a second.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: rows at or after
-- $to TIMESTAMP: rows before
-- columns: as the table signals; NULL is "no data", and `quality` says why
SELECT
    ts, deployment, inflight, arrivals_per_s, finished_per_s, queued,
    ttft_p50_s, ttft_p90_s, ttft_p99_s, ttft_p99_censored_s, ttft_p99_prometheus_s, ttft_ewma_s,
    itl_p50_s, itl_p99_s, e2e_p99_s, kv_hit_ratio,
    poa_hat, poa_low, poa_high, poa_n, poa_withheld, poa_frozen, poa_ttft, poa_routing, poa_temporal,
    prefill_queue_s, imbalance_s, cache_miss_s, transfer_s, other_s,
    knee_inflight, headroom_ratio, regime, mode, tau, omega, quality
FROM signals
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
ORDER BY ts, deployment
