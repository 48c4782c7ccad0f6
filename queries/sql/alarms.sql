-- What the early warning said: alarms, breaches of the TTFT objective, and each minute that it watched.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: events at or after
-- $to TIMESTAMP: events before
-- columns: ts, deployment, signal, event (learning, armed, watch, alarm, breach, cleared, false, recovered), state (after it), since TIMESTAMP, value and reference of the signal, lead_s (of a breach warned of), watched_s (armed seconds since the row before), why
SELECT ts, deployment, signal, event, state, since, value, reference, lead_s, watched_s, why
FROM alarms
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
ORDER BY ts, deployment, signal, since, event
