-- What people marked. A row is one saying about an incident: the latest of an `id` holds, and one without a title takes it back.
CREATE TABLE incidents (
    marked_at TIMESTAMP NOT NULL, deployment VARCHAR NOT NULL, id VARCHAR NOT NULL, "from" TIMESTAMP NOT NULL, "to" TIMESTAMP NOT NULL,
    title VARCHAR, notes VARCHAR, author VARCHAR
);
