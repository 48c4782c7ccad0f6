-- What the early warning said, and once a minute that it watched. State after the event: learning, armed, alarm, since when. lead_s: of a
-- breach that was warned of. watched_s: armed seconds since the row before. The track record is the sum of these rows.
CREATE TABLE alarms (
    ts TIMESTAMP NOT NULL, deployment VARCHAR NOT NULL, signal VARCHAR NOT NULL, event VARCHAR NOT NULL, state VARCHAR NOT NULL, since TIMESTAMP NOT NULL,
    value DOUBLE, reference DOUBLE, lead_s DOUBLE, watched_s DOUBLE NOT NULL, why VARCHAR
);
