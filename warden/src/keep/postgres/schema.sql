-- One row: the counters of the store.
CREATE TABLE evenkeel.meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema integer NOT NULL,
    -- Id of the next entry. It begins greater than any id that another store of this fleet has given out.
    next_id bigint NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    revision bigint NOT NULL DEFAULT 0,
    entries bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0
);
INSERT INTO evenkeel.meta (schema) VALUES (0);

-- `arrived` and `at` (the entry's own time) are microseconds since 1970.
CREATE TABLE evenkeel.entries (
    id bigint PRIMARY KEY,
    arrived bigint NOT NULL,
    at bigint NOT NULL,
    size integer NOT NULL,
    machine text COLLATE "C" NOT NULL,
    service text COLLATE "C" NOT NULL,
    image text COLLATE "C",
    event text COLLATE "C" NOT NULL,
    level text COLLATE "C" NOT NULL,
    line text NOT NULL
);
CREATE INDEX entries_machine ON evenkeel.entries (machine, id);
CREATE INDEX entries_service ON evenkeel.entries (service, id);
CREATE INDEX entries_image ON evenkeel.entries (image, id) WHERE image IS NOT NULL;
CREATE INDEX entries_event ON evenkeel.entries (event, id);
CREATE INDEX entries_level ON evenkeel.entries (level, id);

-- Machines as JSON, each with the revision of its last change.
CREATE TABLE evenkeel.machines (
    agent text COLLATE "C" PRIMARY KEY,
    revision bigint NOT NULL,
    machine text NOT NULL
);
CREATE INDEX machines_revision ON evenkeel.machines (revision);

-- Values of the fleet's state, each with the revision of its last change.
CREATE TABLE evenkeel.state (
    name text COLLATE "C" PRIMARY KEY,
    revision bigint NOT NULL,
    value bytea NOT NULL
);
