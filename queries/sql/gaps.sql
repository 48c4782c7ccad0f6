-- What is missing: lost events, dropped rows, sources that were away, and the collector's own downtime.
-- $from TIMESTAMP: gaps that end at or after (or have not ended)
-- $to TIMESTAMP: gaps that begin before
-- columns: source, kind, from TIMESTAMP, to TIMESTAMP (NULL: not known), count UBIGINT (NULL: not known), deployment (NULL: all)
SELECT source, kind, "from", "to", count, deployment
FROM gaps
WHERE ($from IS NULL OR "to" IS NULL OR "to" >= $from) AND ($to IS NULL OR "from" < $to)
ORDER BY "from", "to", source, kind, deployment, count
