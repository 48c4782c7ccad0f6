-- Every deployment the store knows, with the span of its data and its latest regime.
-- columns: deployment VARCHAR, first_at TIMESTAMP, last_at TIMESTAMP, regime VARCHAR (NULL: no signals yet)
WITH heard AS (
    SELECT deployment, min(ts) AS first_at, max(ts) AS last_at, arg_max_null(regime, ts) AS regime FROM signals GROUP BY deployment
    UNION ALL
    SELECT deployment, min(arrived_at), max(arrived_at), NULL FROM requests GROUP BY deployment
)
SELECT deployment, min(first_at) AS first_at, max(last_at) AS last_at, max(regime) AS regime
FROM heard
GROUP BY deployment
ORDER BY deployment
