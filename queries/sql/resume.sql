-- Where a collector that starts again takes up.
-- columns: signals_at TIMESTAMP (its last row of signals), control_at TIMESTAMP (the last intent, target or acknowledgement it stored); NULL: none
SELECT
    (SELECT max(ts) FROM signals) AS signals_at,
    (SELECT max(ts) FROM decisions WHERE kind IN ('intent', 'target', 'ack')) AS control_at
