-- What each change of τ and ω did: TTFT P50 and P99, PoA-hat and throughput before against after, for the newest 40 changes of the span.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: changed at or after
-- $to TIMESTAMP: changed before
-- columns, one row a change and measure, by time: ts, deployment (of the decision), applied_at (first acknowledgement), mode, regime, actor, why,
-- intent_at (the operator's intent behind it; NULL: the controller's own), from_tau, from_omega, tau, omega,
-- before_from, before_to, after_from, after_to, complete, measure (ttft_p50_s, ttft_p99_s, poa_hat, finished_per_s), before, after,
-- ratio, low, high (after/before and its 90 % interval), n_before, n_after (requests), withheld (why no number), confounded (why no claim)
WITH targets AS (
    SELECT
        ts, deployment, mode, regime, why, tau, omega,
        coalesce(lag(tau) OVER past, from_tau) AS from_tau, coalesce(lag(omega) OVER past, from_omega) AS from_omega,
        lag(ts) OVER past AS previous_at, lead(ts) OVER past AS until
    FROM decisions
    WHERE kind = 'target' AND tau IS NOT NULL AND omega IS NOT NULL AND ($deployment IS NULL OR deployment = $deployment)
    WINDOW past AS (PARTITION BY deployment ORDER BY ts)
), moves AS (
    SELECT *, lag(ts) OVER past AS previous_move_at, lead(ts) OVER past AS next_move_at
    FROM targets
    WHERE (tau, omega) IS DISTINCT FROM (from_tau, from_omega)
    WINDOW past AS (PARTITION BY deployment ORDER BY ts)
), chosen AS (
    SELECT * FROM moves
    WHERE ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
    ORDER BY ts DESC, deployment
    LIMIT 40
), answered AS (
    SELECT
        c.*,
        (SELECT min(a.ts) FROM decisions AS a
         WHERE a.kind = 'ack' AND a.error IS NULL AND a.deployment = c.deployment AND (a.tau, a.omega) = (c.tau, c.omega)
             AND a.ts >= c.ts AND (c.until IS NULL OR a.ts < c.until)) AS applied_at,
        (SELECT max(a.error) FROM decisions AS a
         WHERE a.kind = 'ack' AND a.error IS NOT NULL AND a.deployment = c.deployment
             AND a.ts >= c.ts AND (c.until IS NULL OR a.ts < c.until)) AS error,
        (SELECT max(i.ts) FROM decisions AS i
         WHERE i.kind = 'intent' AND i.deployment = c.deployment AND i.ts <= c.ts
             AND (c.previous_at IS NULL OR i.ts > c.previous_at)) AS intent_at,
        (SELECT max(s.ts) FROM signals AS s WHERE s.deployment = c.deployment) AS known_until
    FROM chosen AS c
), minutes AS (
    SELECT
        ts AS changed_at, deployment AS changed, coalesce(applied_at, ts) AS applied,
        unnest(generate_series(
            time_bucket(INTERVAL 1 MINUTE, applied - INTERVAL 240 SECOND), applied + INTERVAL 140 SECOND, INTERVAL 1 MINUTE
        )) AS minute
    FROM answered
), near AS (
    -- By the minutes round each change, and rows only once they are known: a join on a range of time would sort every request in the store.
    SELECT m.changed_at AS of_change, m.changed AS of_deployment, r.rowid AS id
    FROM minutes AS m
    JOIN requests AS r ON time_bucket(INTERVAL 1 MINUTE, r.arrived_at) = m.minute AND r.deployment = m.changed
    WHERE r.arrived_at >= m.applied - INTERVAL 240 SECOND AND r.arrived_at < m.applied + INTERVAL 140 SECOND
        AND r.arrived_at >= (SELECT min(minute) FROM minutes)
), served AS (
    SELECT n.of_change, n.of_deployment, r.* FROM near AS n JOIN requests AS r ON r.rowid = n.id
)
SELECT
    c.ts AS changed_at, c.mode, c.regime AS decided_regime, c.why, c.tau AS to_tau, c.omega AS to_omega, c.from_tau, c.from_omega,
    c.previous_move_at, c.next_move_at, c.applied_at, c.error, c.intent_at, c.known_until, c.deployment AS changed,
    (SELECT max(i.actor) FROM decisions AS i WHERE i.kind = 'intent' AND i.deployment = c.deployment AND i.ts = c.intent_at) AS actor,
    r.* EXCLUDE (of_change, of_deployment)
FROM answered AS c
LEFT JOIN served AS r ON r.of_change = c.ts AND r.of_deployment = c.deployment
ORDER BY c.ts, c.deployment, r.arrived_at, r.request_id
