-- What each of the three games costs, every 5 s, over the window of the pulse.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: rows at or after
-- $to TIMESTAMP: rows before
-- columns: as the table games; `*_s` of a cost are request-seconds of the window, waits and gains seconds a request; NULL: unknown, see quality
SELECT *
FROM games
WHERE ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
ORDER BY ts, deployment
