-- What happened, in order: changes of regime, overrides, switches and what became of them, workers that left, and what was not seen.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: at or after
-- $to TIMESTAMP: before
-- columns: ts TIMESTAMP, until TIMESTAMP (NULL: a moment, or not known), deployment (NULL: all), kind VARCHAR (regime, override, switch,
--     ack, expiry, refusal, hold, worker gone, gap), what VARCHAR, who VARCHAR, why VARCHAR
WITH steps AS (
    SELECT ts, deployment, regime, lag(regime IGNORE NULLS) OVER (PARTITION BY deployment ORDER BY ts) AS before
    FROM signals
    WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
),
acts AS (
    SELECT * FROM decisions
    WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
)
SELECT ts, NULL::TIMESTAMP AS until, deployment, 'regime' AS kind, before || ' → ' || regime AS what, NULL::VARCHAR AS who, NULL::VARCHAR AS why
FROM steps
WHERE regime IS NOT NULL AND before IS NOT NULL AND regime <> before
UNION ALL
SELECT ts, expires_at, deployment, 'override', mode || CASE WHEN mode = 'manual' THEN printf(' τ %g ω %g', tau, omega) ELSE '' END, actor, why
FROM acts
WHERE kind = 'intent' AND mode IS NOT NULL
UNION ALL
SELECT ts, NULL, deployment, 'switch', printf('τ %g ω %g', tau, omega), mode, why
FROM acts
WHERE kind = 'target' AND (tau IS DISTINCT FROM from_tau OR omega IS DISTINCT FROM from_omega)
UNION ALL
SELECT ts, NULL, deployment, 'ack', coalesce(printf('τ %g ω %g', tau, omega), 'nothing in force'), replica, error
FROM acts
WHERE kind = 'ack'
UNION ALL
SELECT ts, NULL, deployment, kind, coalesce(printf('τ %g ω %g', tau, omega), mode, kind), actor, why
FROM acts
WHERE kind NOT IN ('intent', 'target', 'ack')
UNION ALL
SELECT
    "from", "to", deployment, CASE kind WHEN 'worker gone' THEN kind ELSE 'gap' END,
    CASE kind WHEN 'worker gone' THEN source ELSE source || ': ' || kind END, NULL,
    CASE WHEN count > 0 THEN count || CASE kind WHEN 'worker gone' THEN ' requests lost with it' ELSE ' missing' END END
FROM gaps
WHERE ($deployment IS NULL OR deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR "from" >= $from) AND ($to IS NULL OR "from" < $to)
ORDER BY ts, kind, what, who, why, deployment, until
