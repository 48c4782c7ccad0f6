-- The three games every 5 s: what each costs, over the window of the pulse. Seconds `*_s` of a cost are request-seconds of the window.
CREATE TABLE games (
    ts TIMESTAMP NOT NULL, deployment VARCHAR NOT NULL,
    finished UINTEGER, costliest VARCHAR, cost_s DOUBLE, sentence VARCHAR NOT NULL, lever VARCHAR,
    routing_ratio DOUBLE, imbalance_s DOUBLE,
    hit_possible_ratio DOUBLE, hit_chosen_ratio DOUBLE, hit_realised_ratio DOUBLE, lost_blocks DOUBLE, cache_miss_s DOUBLE,
    kv_workers UINTEGER, kv_silent_workers UINTEGER, tiers VARCHAR[], tier_blocks UBIGINT[],
    prefill_workers UINTEGER, decode_workers UINTEGER, prefill_busy_ratio DOUBLE, decode_busy_ratio DOUBLE,
    wait_s DOUBLE, wait_predicted_s DOUBLE, prefill_queue_s DOUBLE, ttft_gain_s DOUBLE, itl_gain_s DOUBLE,
    equilibrium_prefill UINTEGER, optimum_prefill UINTEGER, e2e_s DOUBLE, e2e_optimum_s DOUBLE,
    prefill_busy_followed_ratio DOUBLE, knee_inflight DOUBLE, knee_followed_inflight DOUBLE, coupling VARCHAR[], quality VARCHAR[]
);
-- Load of each worker (requests present, mean of 5 s) and its load in the cheapest placement of the same requests.
CREATE TABLE game_loads (
    ts TIMESTAMP NOT NULL, deployment VARCHAR NOT NULL, role VARCHAR NOT NULL, worker_id UBIGINT NOT NULL, dp_rank UINTEGER NOT NULL,
    load DOUBLE, optimum DOUBLE
);
