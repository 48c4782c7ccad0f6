-- Counters and gauges as scraped.
-- $name VARCHAR: one metric; NULL: all
-- $from TIMESTAMP: samples at or after
-- $to TIMESTAMP: samples before
-- columns: ts TIMESTAMP, target, name, labels (JSON object), value DOUBLE
SELECT ts, target, name, labels, value
FROM metric_samples
WHERE ($name IS NULL OR name = $name) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
ORDER BY ALL
