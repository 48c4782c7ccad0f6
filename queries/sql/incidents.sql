-- Incidents: what people marked, and every excursion of the regime into saturated (those less than a minute apart are one), worst first seen.
-- A marked incident whose id is that of an excursion names it and stands in its place.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: that end at or after
-- $to TIMESTAMP: that begin before
-- columns: id VARCHAR (an excursion's is "saturated-" and its beginning in Unix seconds), deployment, from TIMESTAMP, to TIMESTAMP,
--     title VARCHAR (NULL: nobody named it), notes VARCHAR, author VARCHAR, marked_at TIMESTAMP (NULL: found by the regime alone),
--     ttft_p99_s DOUBLE (the worst), poa_hat DOUBLE (the peak of those not withheld), overrides UBIGINT (intents by people), gaps UBIGINT
WITH seconds AS (
    SELECT ts, deployment, ts - lag(ts) OVER (PARTITION BY deployment ORDER BY ts) AS since
    FROM signals
    WHERE regime = 'saturated' AND ($deployment IS NULL OR deployment = $deployment)
),
runs AS (
    SELECT
        ts, deployment,
        sum((since IS NULL OR since > INTERVAL 60 SECONDS)::INTEGER) OVER (PARTITION BY deployment ORDER BY ts ROWS UNBOUNDED PRECEDING) AS run
    FROM seconds
),
excursions AS (
    SELECT 'saturated-' || (epoch_us(min(ts)) // 1000000)::VARCHAR AS id, deployment, min(ts) AS "from", max(ts) + INTERVAL 1 SECOND AS "to"
    FROM runs
    GROUP BY deployment, run
),
marked AS (
    SELECT * FROM incidents
    WHERE $deployment IS NULL OR deployment = $deployment
    QUALIFY row_number() OVER (PARTITION BY deployment, id ORDER BY marked_at DESC) = 1
),
found AS (
    SELECT m.id, m.deployment, m."from", m."to", m.title, m.notes, m.author, m.marked_at FROM marked AS m WHERE m.title IS NOT NULL
    UNION ALL
    SELECT e.id, e.deployment, e."from", e."to", NULL, NULL, NULL, NULL
    FROM excursions AS e ANTI JOIN marked AS m ON m.id = e.id AND m.deployment = e.deployment
),
bounded AS (SELECT * FROM found WHERE ($from IS NULL OR "to" >= $from) AND ($to IS NULL OR "from" < $to)),
known AS (SELECT deployment, min(ts) AS first_at, max(ts) AS last_at FROM signals GROUP BY deployment),
minutes AS (
    SELECT
        b.id, b.deployment, b."from", b."to",
        unnest(generate_series(
            time_bucket(INTERVAL 1 MINUTE, greatest(b."from", k.first_at)), least(b."to", k.last_at), INTERVAL 1 MINUTE
        )) AS minute
    FROM bounded AS b JOIN known AS k ON k.deployment = b.deployment
),
worst AS (
    -- By the minutes of each incident: a join on a range of time would sort every second that is stored.
    SELECT m.id, m.deployment, max(s.ttft_p99_s) AS ttft_p99_s, max(s.poa_hat) FILTER (WHERE s.poa_withheld IS NULL) AS poa_hat
    FROM minutes AS m
    JOIN signals AS s ON time_bucket(INTERVAL 1 MINUTE, s.ts) = m.minute AND s.deployment = m.deployment
    WHERE s.ts >= m."from" AND s.ts < m."to"
    GROUP BY m.id, m.deployment
)
SELECT
    b.id, b.deployment, b."from", b."to", b.title, b.notes, b.author, b.marked_at, w.ttft_p99_s, w.poa_hat,
    (
        SELECT count(*)::UBIGINT FROM decisions AS d
        WHERE d.deployment = b.deployment AND d.kind = 'intent' AND d.ts >= b."from" AND d.ts < b."to"
    ) AS overrides,
    (
        SELECT count(*)::UBIGINT FROM gaps AS g
        WHERE (g.deployment IS NULL OR g.deployment = b.deployment) AND coalesce(g."to" >= b."from", true) AND g."from" < b."to"
    ) AS gaps
FROM bounded AS b
LEFT JOIN worst AS w ON w.id = b.id AND w.deployment = b.deployment
ORDER BY b."from" DESC, b.deployment, b.id
