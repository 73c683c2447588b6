-- Whose the entries are, for the retention, which is per agent. Not a column of the entries: their table is not rewritten, so
-- this takes no time however large it is.
CREATE TABLE evenkeel.owners (
    id bigint PRIMARY KEY,
    agent text COLLATE "C" NOT NULL,
    size integer NOT NULL
);
CREATE INDEX owners_agent ON evenkeel.owners (agent, id);

-- Total text of each agent's entries, in bytes.
CREATE TABLE evenkeel.agents (
    agent text COLLATE "C" PRIMARY KEY,
    bytes bigint NOT NULL
);

-- Entries of earlier versions with a smaller id have no owner yet; 0 if all have one. The retention adds them.
ALTER TABLE evenkeel.meta ADD COLUMN agents_from bigint NOT NULL DEFAULT 0;
UPDATE evenkeel.meta SET agents_from = next_id;
