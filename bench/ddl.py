"""What a database pays for the extension that mints IDs only: CREATE EXTENSION, and DDL of its own."""

from figures import Table
from server import connect
from shards import seconds

TABLES = """DO $$ BEGIN FOR n IN 1..{} LOOP
    EXECUTE 'CREATE TABLE made (id bigint PRIMARY KEY, body text)';
    EXECUTE 'ALTER TABLE made ADD COLUMN n integer';
    EXECUTE 'DROP TABLE made';
END LOOP; END $$"""


def ddl(bench):
    """In turn without the extension and with it, so that a machine that gets slower or faster does so for both."""
    created = Table("ddl", "CREATE EXTENSION in a new database", "ms")
    tables = bench.size(1000, 100)
    made = Table("ddl", f"{tables:,} tables created, altered and dropped, without a shard", "s")
    with connect("postgres") as postgres:
        for _ in bench.rounds(9, 3):
            for database, extension in (("without the extension", False), ("with the extension", True)):
                postgres.execute("CREATE DATABASE ddl")
                with connect("ddl") as session:
                    if extension:
                        created.add("`insta_ids`", 1000 * seconds(lambda: session.execute("CREATE EXTENSION insta_ids")))
                    session.execute(TABLES.format(10))
                    took = seconds(lambda: session.execute(TABLES.format(tables)))
                    made.add(database, took, *["without the extension"] * extension)
                postgres.execute("DROP DATABASE ddl")
    bench.show(created)
    bench.show(made)
