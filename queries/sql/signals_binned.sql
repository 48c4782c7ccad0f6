-- The signals of a deployment in bins of `step_s`, for ranges too long to draw second by second.
-- Latencies and PoA: the worst of the bin (poa_low, poa_high, poa_n, poa_withheld are those of that worst second). Rates and counts: the mean.
-- Regime, mode, tau, omega, knee: the last of the bin. Quality: everything that was said in the bin.
-- Steps that are multiples of 10 s or 60 s are answered from rollups, and so reach further back than raw rows; where raw rows are gone, a
-- smaller step is answered from rollups of 10 s. The same rows come out either way: rollups merge without loss.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: rows at or after
-- $to TIMESTAMP: rows before
-- $step_s DOUBLE required: width of a bin, counted from 1970-01-01
-- columns: as the table signals; ts is the start of the bin
WITH raw AS (
    -- What rollups do not tell: everything where the step fits no bin of theirs, else the two ends that cut one.
    -- The bounds are written out, not joined: only as constants do they keep DuckDB from reading every row.
    SELECT * FROM signals WHERE $step_s % 10 <> 0 AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
    UNION ALL
    SELECT * FROM signals WHERE $step_s % 10 = 0 AND ts >= $from AND ts < least(bin_after($from, $step_s), $to)
    UNION ALL
    SELECT * FROM signals WHERE $step_s % 10 = 0 AND ts < $to AND ts >= greatest(bin_before($to, $step_s), bin_after($from, $step_s))
),
parts AS (
    SELECT
        r.ts, r.deployment, last_at, inflight, arrivals_per_s, finished_per_s, queued, kv_hit_ratio, prefill_queue_s, imbalance_s,
        cache_miss_s, transfer_s, other_s, inflight_n, arrivals_per_s_n, finished_per_s_n, queued_n, kv_hit_ratio_n, prefill_queue_s_n,
        imbalance_s_n, cache_miss_s_n, transfer_s_n, other_s_n, ttft_p50_s, ttft_p90_s, ttft_p99_s, ttft_p99_censored_s,
        ttft_p99_prometheus_s, ttft_ewma_s, itl_p50_s, itl_p99_s, e2e_p99_s, poa_hat, poa_frozen, poa_ttft, poa_routing, poa_temporal,
        poa_low, poa_high, poa_n, poa_withheld, knee_inflight, headroom_ratio, regime, mode, tau, omega, quality
    FROM signals_rollups AS r
    WHERE r.step_s = bin_width($step_s)
        AND ($from IS NULL OR r.ts >= bin_after($from, $step_s))
        AND ($to IS NULL OR r.ts < bin_before($to, $step_s))
        AND ($step_s % 10 = 0 OR r.ts < (SELECT raw_from FROM retention))
        AND ($deployment IS NULL OR r.deployment = $deployment)
    UNION ALL
    SELECT
        s.ts, s.deployment, s.ts AS last_at, inflight, arrivals_per_s, finished_per_s, queued, kv_hit_ratio, prefill_queue_s, imbalance_s,
        cache_miss_s, transfer_s, other_s, (inflight IS NOT NULL)::UINTEGER AS inflight_n,
        (arrivals_per_s IS NOT NULL)::UINTEGER AS arrivals_per_s_n, (finished_per_s IS NOT NULL)::UINTEGER AS finished_per_s_n,
        (queued IS NOT NULL)::UINTEGER AS queued_n, (kv_hit_ratio IS NOT NULL)::UINTEGER AS kv_hit_ratio_n,
        (prefill_queue_s IS NOT NULL)::UINTEGER AS prefill_queue_s_n, (imbalance_s IS NOT NULL)::UINTEGER AS imbalance_s_n,
        (cache_miss_s IS NOT NULL)::UINTEGER AS cache_miss_s_n, (transfer_s IS NOT NULL)::UINTEGER AS transfer_s_n,
        (other_s IS NOT NULL)::UINTEGER AS other_s_n, ttft_p50_s, ttft_p90_s, ttft_p99_s, ttft_p99_censored_s, ttft_p99_prometheus_s,
        ttft_ewma_s, itl_p50_s, itl_p99_s, e2e_p99_s, poa_hat, poa_frozen, poa_ttft, poa_routing, poa_temporal, poa_low, poa_high, poa_n,
        poa_withheld, knee_inflight, headroom_ratio, regime, mode, tau, omega, quality
    FROM raw AS s
    WHERE $deployment IS NULL OR s.deployment = $deployment
)
SELECT
    make_timestamp((floor(epoch_us(p.ts) / ($step_s * 1e6)) * $step_s * 1e6)::BIGINT) AS ts, deployment,
    sum(inflight) / nullif(sum(inflight_n), 0) AS inflight, sum(arrivals_per_s) / nullif(sum(arrivals_per_s_n), 0) AS arrivals_per_s,
    sum(finished_per_s) / nullif(sum(finished_per_s_n), 0) AS finished_per_s, sum(queued) / nullif(sum(queued_n), 0) AS queued,
    max(ttft_p50_s) AS ttft_p50_s, max(ttft_p90_s) AS ttft_p90_s, max(ttft_p99_s) AS ttft_p99_s,
    max(ttft_p99_censored_s) AS ttft_p99_censored_s, max(ttft_p99_prometheus_s) AS ttft_p99_prometheus_s, max(ttft_ewma_s) AS ttft_ewma_s,
    max(itl_p50_s) AS itl_p50_s, max(itl_p99_s) AS itl_p99_s, max(e2e_p99_s) AS e2e_p99_s,
    sum(kv_hit_ratio) / nullif(sum(kv_hit_ratio_n), 0) AS kv_hit_ratio, max(poa_hat) AS poa_hat, arg_max_null(poa_low, poa_hat) AS poa_low,
    arg_max_null(poa_high, poa_hat) AS poa_high,
    CASE WHEN count(poa_hat) > 0 THEN arg_max_null(poa_n, poa_hat) ELSE arg_max_null(poa_n, last_at) END AS poa_n,
    CASE WHEN count(poa_hat) > 0 THEN arg_max_null(poa_withheld, poa_hat) ELSE arg_max_null(poa_withheld, last_at) END AS poa_withheld,
    max(poa_frozen) AS poa_frozen, max(poa_ttft) AS poa_ttft, max(poa_routing) AS poa_routing, max(poa_temporal) AS poa_temporal,
    sum(prefill_queue_s) / nullif(sum(prefill_queue_s_n), 0) AS prefill_queue_s,
    sum(imbalance_s) / nullif(sum(imbalance_s_n), 0) AS imbalance_s, sum(cache_miss_s) / nullif(sum(cache_miss_s_n), 0) AS cache_miss_s,
    sum(transfer_s) / nullif(sum(transfer_s_n), 0) AS transfer_s, sum(other_s) / nullif(sum(other_s_n), 0) AS other_s,
    arg_max_null(knee_inflight, last_at) AS knee_inflight, arg_max_null(headroom_ratio, last_at) AS headroom_ratio,
    arg_max_null(regime, last_at) AS regime, arg_max_null(mode, last_at) AS mode, arg_max_null(tau, last_at) AS tau,
    arg_max_null(omega, last_at) AS omega,
    list_sort(list_distinct(flatten(list(quality)))) AS quality
FROM parts AS p
GROUP BY 1, deployment
ORDER BY ts, deployment
