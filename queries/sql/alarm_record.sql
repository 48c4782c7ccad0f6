-- The early warning's state and track record, over all that is stored up to then: one row for each deployment and signal, the one that spoke last at the end.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: those that said something at or after (each speaks once a minute)
-- $to TIMESTAMP: as it stood before
-- columns: ts TIMESTAMP (its last word), deployment, signal, state, since TIMESTAMP, why, value and reference of the signal (last known), breaches (while armed), warned, untested (breaches before it was armed), lead_s (median), lead_low_s, lead_high_s, false_alarms, watched_s
SELECT
    max(a.ts) AS ts, deployment, signal, arg_max(state, (a.ts, a.since)) AS state, max(a.since) AS since, arg_max_null(why, (a.ts, a.since)) AS why,
    arg_max(value, (a.ts, a.since)) AS value, arg_max(reference, (a.ts, a.since)) AS reference,
    count(*) FILTER (event = 'breach' AND state <> 'learning') AS breaches, count(lead_s) AS warned,
    count(*) FILTER (event = 'breach' AND state = 'learning') AS untested,
    median(lead_s) AS lead_s, min(lead_s) AS lead_low_s, max(lead_s) AS lead_high_s,
    count(*) FILTER (event = 'false') AS false_alarms, sum(watched_s) AS watched_s
FROM alarms AS a
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($to IS NULL OR a.ts < $to)
GROUP BY deployment, signal
HAVING $from IS NULL OR max(a.ts) >= $from
ORDER BY ts, deployment, signal
