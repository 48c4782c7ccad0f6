-- Rollups: what is left of raw rows when these are old. They are kept for bins of 10 s and of 1 min (`step_s`), and written in the transaction
-- that writes the rows they cover. Several rows of one bin are parts of it and merge: sums and counts add up, maxima and lists join;
-- `merged` says that a part was joined from all there were. See store/rollups.py.
CREATE TABLE signals_rollups (
    ts TIMESTAMP NOT NULL, step_s UTINYINT NOT NULL, deployment VARCHAR NOT NULL, merged BOOLEAN NOT NULL, last_at TIMESTAMP NOT NULL,
    -- Means: the sum of the seconds that had a value, and how many those were.
    inflight DOUBLE, arrivals_per_s DOUBLE, finished_per_s DOUBLE, queued DOUBLE, kv_hit_ratio DOUBLE,
    prefill_queue_s DOUBLE, imbalance_s DOUBLE, cache_miss_s DOUBLE, transfer_s DOUBLE, other_s DOUBLE,
    inflight_n UINTEGER, arrivals_per_s_n UINTEGER, finished_per_s_n UINTEGER, queued_n UINTEGER, kv_hit_ratio_n UINTEGER,
    prefill_queue_s_n UINTEGER, imbalance_s_n UINTEGER, cache_miss_s_n UINTEGER, transfer_s_n UINTEGER, other_s_n UINTEGER,
    -- The worst second.
    ttft_p50_s DOUBLE, ttft_p90_s DOUBLE, ttft_p99_s DOUBLE, ttft_p99_censored_s DOUBLE, ttft_p99_prometheus_s DOUBLE, ttft_ewma_s DOUBLE,
    itl_p50_s DOUBLE, itl_p99_s DOUBLE, e2e_p99_s DOUBLE,
    poa_hat DOUBLE, poa_frozen DOUBLE, poa_ttft DOUBLE, poa_routing DOUBLE, poa_temporal DOUBLE,
    -- Of the second with the largest poa_hat; of the last one where none had any. And the smallest.
    poa_low DOUBLE, poa_high DOUBLE, poa_n UINTEGER, poa_withheld VARCHAR, poa_hat_min DOUBLE,
    -- Of the last second.
    knee_inflight DOUBLE, headroom_ratio DOUBLE, regime VARCHAR, mode VARCHAR, tau DOUBLE, omega DOUBLE,
    quality VARCHAR[]
);
CREATE TABLE worker_rollups (
    ts TIMESTAMP NOT NULL, step_s UTINYINT NOT NULL, deployment VARCHAR NOT NULL, merged BOOLEAN NOT NULL, last_at TIMESTAMP NOT NULL,
    component VARCHAR NOT NULL, worker_id UBIGINT NOT NULL, dp_rank UINTEGER, role VARCHAR, inflight DOUBLE, inflight_n UINTEGER
);
-- Histograms of latencies: `counts[i]` of bucket `buckets[i]`, where bucket b holds what lies above 1.05^(b-1) s and at most at 1.05^b s.
CREATE TABLE latency_rollups (
    ts TIMESTAMP NOT NULL, step_s UTINYINT NOT NULL, deployment VARCHAR NOT NULL, merged BOOLEAN NOT NULL,
    kind VARCHAR NOT NULL, buckets SMALLINT[] NOT NULL, counts UBIGINT[] NOT NULL, sum_s DOUBLE NOT NULL, max_s DOUBLE NOT NULL
);
-- Since when raw rows are there: those before were deleted, and only rollups tell of them. One row.
CREATE TABLE retention (raw_from TIMESTAMP);
INSERT INTO retention VALUES (NULL);
-- The rollup that answers a step, and the bins of it that lie whole within a span. Macros: only what is written out is a constant to DuckDB,
-- and only by constants does it skip the rows that a query does not need.
CREATE MACRO bin_width(step) AS CASE WHEN step % 60 = 0 THEN 60 ELSE 10 END;
CREATE MACRO bin_before(moment, step) AS time_bucket(to_seconds(bin_width(step)), moment::TIMESTAMP);
CREATE MACRO bin_after(moment, step) AS bin_before(moment::TIMESTAMP + to_seconds(bin_width(step)) - INTERVAL 1 MICROSECOND, step);
