-- The games in bins of `step_s`, for charts: costs a finished request, ratios, waits and gains.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: rows at or after
-- $to TIMESTAMP: rows before
-- $step_s DOUBLE required: width of a bin, counted from 1970-01-01
-- columns: ts TIMESTAMP (start of the bin), deployment, *_each_s DOUBLE (seconds a finished request), then as in games: the mean of the bin
SELECT
    make_timestamp((floor(epoch_us(g.ts) / ($step_s * 1e6)) * $step_s * 1e6)::BIGINT) AS ts, deployment,
    sum(imbalance_s) / nullif(sum(finished) FILTER (imbalance_s IS NOT NULL), 0) AS imbalance_each_s,
    sum(cache_miss_s) / nullif(sum(finished) FILTER (cache_miss_s IS NOT NULL), 0) AS cache_miss_each_s,
    sum(prefill_queue_s) / nullif(sum(finished) FILTER (prefill_queue_s IS NOT NULL), 0) AS prefill_queue_each_s,
    avg(routing_ratio) AS routing_ratio, avg(hit_possible_ratio) AS hit_possible_ratio, avg(hit_chosen_ratio) AS hit_chosen_ratio,
    avg(hit_realised_ratio) AS hit_realised_ratio, avg(lost_blocks) AS lost_blocks,
    avg(prefill_busy_ratio) AS prefill_busy_ratio, avg(decode_busy_ratio) AS decode_busy_ratio,
    avg(wait_s) AS wait_s, avg(wait_predicted_s) AS wait_predicted_s, avg(ttft_gain_s) AS ttft_gain_s, avg(itl_gain_s) AS itl_gain_s,
    avg(prefill_workers) AS prefill_workers, avg(equilibrium_prefill) AS equilibrium_prefill, avg(optimum_prefill) AS optimum_prefill
FROM games AS g
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR g.ts >= $from) AND ($to IS NULL OR g.ts < $to)
GROUP BY 1, deployment
ORDER BY ts, deployment
