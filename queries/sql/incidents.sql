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
    SELECT ts, deployment, count(*) FILTER (WHERE since IS NULL OR since > INTERVAL 60 SECONDS) OVER (PARTITION BY deployment ORDER BY ts) AS run
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
bounded AS (SELECT * FROM found WHERE ($from IS NULL OR "to" >= $from) AND ($to IS NULL OR "from" < $to))
SELECT
    b.id, b.deployment, b."from", b."to", b.title, b.notes, b.author, b.marked_at,
    (SELECT max(s.ttft_p99_s) FROM signals AS s WHERE s.deployment = b.deployment AND s.ts >= b."from" AND s.ts < b."to") AS ttft_p99_s,
    (
        SELECT max(s.poa_hat) FROM signals AS s
        WHERE s.deployment = b.deployment AND s.ts >= b."from" AND s.ts < b."to" AND s.poa_withheld IS NULL
    ) AS poa_hat,
    (
        SELECT count(*)::UBIGINT FROM decisions AS d
        WHERE d.deployment = b.deployment AND d.kind = 'intent' AND d.ts >= b."from" AND d.ts < b."to"
    ) AS overrides,
    (
        SELECT count(*)::UBIGINT FROM gaps AS g
        WHERE (g.deployment IS NULL OR g.deployment = b.deployment) AND coalesce(g."to" >= b."from", true) AND g."from" < b."to"
    ) AS gaps
FROM bounded AS b
ORDER BY b."from" DESC, b.deployment, b.id
