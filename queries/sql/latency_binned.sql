-- TTFT, ITL and end-to-end latency in bins of `step_s`, from histograms that merge: over any span the quantiles are those of all its requests.
-- A quantile is the middle of its bucket and lies within 2.4 % of the sample of that rank. TTFT counts where the first token came, end-to-end
-- where the request finished; ITL samples are engine steps (Dynamo 1.x reports them), each counted for the requests that ran on it.
-- $deployment VARCHAR: one deployment; NULL: all
-- $from TIMESTAMP: bins that begin at or after
-- $to TIMESTAMP: bins that begin before
-- $step_s DOUBLE required: width of a bin, a multiple of 10 s; counted from 1970-01-01
-- columns: ts TIMESTAMP (start of the bin), deployment, kind (ttft, itl, e2e), n UBIGINT (samples), mean_s, p50_s, p90_s, p99_s, max_s
WITH buckets AS (
    SELECT
        make_timestamp((floor(epoch_us(ts) / ($step_s * 1e6)) * $step_s * 1e6)::BIGINT) AS bin, deployment, kind,
        unnest(buckets) AS bucket, unnest(counts) AS n, if(generate_subscripts(buckets, 1) = 1, sum_s, 0) AS sum_s, max_s
    FROM latency_rollups
    WHERE step_s = bin_width($step_s)
        AND ($deployment IS NULL OR deployment = $deployment) AND ($from IS NULL OR ts >= $from) AND ($to IS NULL OR ts < $to)
),
summed AS (
    SELECT bin, deployment, kind, bucket, sum(n) AS n, sum(sum_s) AS sum_s, max(max_s) AS max_s FROM buckets GROUP BY ALL
),
ranked AS (
    SELECT
        *, 2 * pow(1.05, bucket) / 2.05 AS middle_s,
        sum(n) OVER (PARTITION BY bin, deployment, kind ORDER BY bucket) AS below, sum(n) OVER (PARTITION BY bin, deployment, kind) AS whole
    FROM summed
)
SELECT
    bin AS ts, deployment, kind, sum(n)::UBIGINT AS n, sum(sum_s) / sum(n) AS mean_s,
    min(middle_s) FILTER (WHERE below >= 0.5 * whole) AS p50_s, min(middle_s) FILTER (WHERE below >= 0.9 * whole) AS p90_s,
    min(middle_s) FILTER (WHERE below >= 0.99 * whole) AS p99_s, max(max_s) AS max_s
FROM ranked
GROUP BY bin, deployment, kind
ORDER BY ts, deployment, kind
