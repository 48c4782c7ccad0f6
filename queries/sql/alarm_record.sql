-- The early warning's state and track record, over all that is stored: one row for each deployment and signal, the one that spoke last first.
-- $deployment VARCHAR: one deployment; NULL: all
-- columns: deployment, signal, as_of TIMESTAMP (its last word), state, since TIMESTAMP, why, breaches (while armed), warned, untested (breaches before it was armed), lead_s (median), lead_low_s, lead_high_s, false_alarms, watched_s
SELECT
    deployment, signal, max(ts) AS as_of, arg_max(state, (ts, since)) AS state, max(since) AS since, arg_max_null(why, (ts, since)) AS why,
    count(*) FILTER (event = 'breach' AND state <> 'learning') AS breaches, count(lead_s) AS warned,
    count(*) FILTER (event = 'breach' AND state = 'learning') AS untested,
    median(lead_s) AS lead_s, min(lead_s) AS lead_low_s, max(lead_s) AS lead_high_s,
    count(*) FILTER (event = 'false') AS false_alarms, sum(watched_s) AS watched_s
FROM alarms
WHERE $deployment IS NULL OR deployment = $deployment
GROUP BY deployment, signal
ORDER BY as_of DESC, deployment, signal
