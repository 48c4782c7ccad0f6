-- The signals of a deployment in bins of `step_s`, for ranges too long to draw second by second.
-- Latencies and PoA: the worst of the bin (poa_low, poa_high, poa_n, poa_withheld are those of that worst second). Rates and counts: the mean.
-- Regime, mode, tau, omega, knee: the last of the bin. Quality: everything that was said in the bin.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: rows at or after
-- $to TIMESTAMP: rows before
-- $step_s DOUBLE required: width of a bin, counted from 1970-01-01
-- columns: as the table signals; ts is the start of the bin
SELECT
    make_timestamp((floor(epoch_us(ts) / ($step_s * 1e6)) * $step_s * 1e6)::BIGINT) AS ts, deployment,
    avg(inflight) AS inflight, avg(arrivals_per_s) AS arrivals_per_s, avg(finished_per_s) AS finished_per_s, avg(queued) AS queued,
    max(ttft_p50_s) AS ttft_p50_s, max(ttft_p90_s) AS ttft_p90_s, max(ttft_p99_s) AS ttft_p99_s,
    max(ttft_p99_censored_s) AS ttft_p99_censored_s, max(ttft_p99_prometheus_s) AS ttft_p99_prometheus_s, max(ttft_ewma_s) AS ttft_ewma_s,
    max(itl_p50_s) AS itl_p50_s, max(itl_p99_s) AS itl_p99_s, max(e2e_p99_s) AS e2e_p99_s, avg(kv_hit_ratio) AS kv_hit_ratio,
    max(poa_hat) AS poa_hat, arg_max_null(poa_low, poa_hat) AS poa_low, arg_max_null(poa_high, poa_hat) AS poa_high,
    CASE WHEN count(poa_hat) > 0 THEN arg_max_null(poa_n, poa_hat) ELSE arg_max_null(poa_n, s.ts) END AS poa_n,
    CASE WHEN count(poa_hat) > 0 THEN arg_max_null(poa_withheld, poa_hat) ELSE arg_max_null(poa_withheld, s.ts) END AS poa_withheld,
    max(poa_frozen) AS poa_frozen, max(poa_ttft) AS poa_ttft, max(poa_routing) AS poa_routing, max(poa_temporal) AS poa_temporal,
    avg(prefill_queue_s) AS prefill_queue_s, avg(imbalance_s) AS imbalance_s, avg(cache_miss_s) AS cache_miss_s,
    avg(transfer_s) AS transfer_s, avg(other_s) AS other_s,
    arg_max_null(knee_inflight, s.ts) AS knee_inflight, arg_max_null(headroom_ratio, s.ts) AS headroom_ratio,
    arg_max_null(regime, s.ts) AS regime, arg_max_null(mode, s.ts) AS mode, arg_max_null(tau, s.ts) AS tau, arg_max_null(omega, s.ts) AS omega,
    list_sort(list_distinct(flatten(list(quality)))) AS quality
FROM signals AS s
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR s.ts >= $from) AND ($to IS NULL OR s.ts < $to)
GROUP BY ALL
ORDER BY ts, deployment
