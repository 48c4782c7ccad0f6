-- Histograms as scraped: cumulative counts, one for each bound in `le`, +Inf last.
-- $name VARCHAR: one metric; NULL: all
-- $from TIMESTAMP: samples at or after
-- $to TIMESTAMP: samples before
-- columns: ts TIMESTAMP, target, name, labels (JSON object), le DOUBLE[], counts DOUBLE[], total DOUBLE (the sum of observations)
SELECT ts, target, name, labels, le, counts, total
FROM histogram_samples
WHERE ($name IS NULL OR name = $name) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
ORDER BY ALL
