-- Recordings already imported, by the hash of their bytes: importing one again changes nothing.
CREATE TABLE imports (sha256 VARCHAR NOT NULL, name VARCHAR NOT NULL, imported_at TIMESTAMP NOT NULL, lines UBIGINT NOT NULL);
