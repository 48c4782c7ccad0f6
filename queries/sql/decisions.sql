-- Every intent, target, acknowledgement, expiry, refusal and hold: who, why, from what, to what.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: at or after
-- $to TIMESTAMP: before
-- columns: as the table decisions
SELECT ts, deployment, kind, actor, replica, mode, regime, tau, omega, from_tau, from_omega, why, revision, expires_at, error
FROM decisions
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
ORDER BY ALL
