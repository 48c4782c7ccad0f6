-- Timestamps are UTC with microseconds. Ids are u64: they pass 2^63, so they are never signed and never floats.
CREATE TABLE requests (
    deployment VARCHAR NOT NULL, request_id VARCHAR NOT NULL, model VARCHAR,
    prefill_worker UBIGINT, prefill_dp_rank UINTEGER, decode_worker UBIGINT, decode_dp_rank UINTEGER,
    arrived_at TIMESTAMP NOT NULL, prefill_done_at TIMESTAMP, decode_started_at TIMESTAMP, first_token_at TIMESTAMP, finished_at TIMESTAMP,
    input_blocks UINTEGER, overlap_blocks UINTEGER, prefill_inflight UINTEGER, decode_inflight UINTEGER,
    tau DOUBLE, omega DOUBLE, regime VARCHAR, outcome VARCHAR NOT NULL
);
CREATE TABLE signals (
    ts TIMESTAMP NOT NULL, deployment VARCHAR NOT NULL,
    inflight DOUBLE, arrivals_per_s DOUBLE, finished_per_s DOUBLE, queued DOUBLE,
    ttft_p50_s DOUBLE, ttft_p90_s DOUBLE, ttft_p99_s DOUBLE, ttft_p99_censored_s DOUBLE, ttft_p99_prometheus_s DOUBLE, ttft_ewma_s DOUBLE,
    itl_p50_s DOUBLE, itl_p99_s DOUBLE, e2e_p99_s DOUBLE, kv_hit_ratio DOUBLE,
    poa_hat DOUBLE, poa_low DOUBLE, poa_high DOUBLE, poa_n UINTEGER, poa_withheld VARCHAR,
    poa_frozen DOUBLE, poa_ttft DOUBLE, poa_routing DOUBLE, poa_temporal DOUBLE,
    prefill_queue_s DOUBLE, imbalance_s DOUBLE, cache_miss_s DOUBLE, transfer_s DOUBLE, other_s DOUBLE,
    knee_inflight DOUBLE, headroom_ratio DOUBLE, regime VARCHAR, mode VARCHAR, tau DOUBLE, omega DOUBLE, quality VARCHAR[]
);
-- One row a change of a field at most: what a worker (or a router about a worker) last said. NULL: not said in this sample.
CREATE TABLE workers (
    ts TIMESTAMP NOT NULL, deployment VARCHAR NOT NULL, component VARCHAR NOT NULL, role VARCHAR, worker_id UBIGINT NOT NULL, dp_rank UINTEGER,
    source VARCHAR NOT NULL, inflight UINTEGER, active_decode_blocks UBIGINT, active_prefill_tokens UBIGINT, kv_used_blocks UBIGINT,
    running UINTEGER, waiting UINTEGER, step_s DOUBLE
);
CREATE TABLE kv_events (
    ts TIMESTAMP NOT NULL, deployment VARCHAR NOT NULL, component VARCHAR NOT NULL, worker_id UBIGINT NOT NULL, dp_rank UINTEGER,
    event_id UBIGINT NOT NULL, kind VARCHAR NOT NULL, parent_hash UBIGINT, block_hashes UBIGINT[], tier VARCHAR
);
CREATE TABLE metric_samples (ts TIMESTAMP NOT NULL, target VARCHAR NOT NULL, name VARCHAR NOT NULL, labels VARCHAR NOT NULL, value DOUBLE NOT NULL);
-- `counts` are cumulative, one for each bound in `le`, as the exposition format has them; +Inf is the last.
CREATE TABLE histogram_samples (
    ts TIMESTAMP NOT NULL, target VARCHAR NOT NULL, name VARCHAR NOT NULL, labels VARCHAR NOT NULL, le DOUBLE[] NOT NULL, counts DOUBLE[] NOT NULL, total DOUBLE
);
CREATE TABLE decisions (
    ts TIMESTAMP NOT NULL, deployment VARCHAR NOT NULL, kind VARCHAR NOT NULL, actor VARCHAR, replica VARCHAR, mode VARCHAR, regime VARCHAR,
    tau DOUBLE, omega DOUBLE, from_tau DOUBLE, from_omega DOUBLE, why VARCHAR, revision UBIGINT, expires_at TIMESTAMP, error VARCHAR
);
CREATE TABLE gaps (source VARCHAR NOT NULL, kind VARCHAR NOT NULL, "from" TIMESTAMP NOT NULL, "to" TIMESTAMP, count UBIGINT, deployment VARCHAR);
