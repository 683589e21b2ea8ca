"""What rows cost by the kind of their key: a million of them inserted or copied, and the index that they leave."""

import statistics
import time

from figures import Table
from server import DIRECTORY, at_once, connections, published, value

IDENTITY = "`bigint` identity"
OURS = "`next_id`"

# What a client could have made before: Snowflake's ids, and ObjectIds (4 bytes of seconds, 5 of the process, 3 counted).
MADE_BEFORE = """
    CREATE TABLE made_before AS
    SELECT n AS v, make_id(now() + n / 500 * interval '1 ms', 7, n % 4096, 'twitter') AS snowflake,
           decode(lpad(to_hex(extract(epoch FROM now())::int + n / 500000), 8, '0') || '0102030405'
               || lpad(to_hex(n % 16777216), 6, '0'), 'hex') AS object_id
    FROM generate_series(1, {rows}) n
"""


def prepare(session):
    published(session)
    session.execute("CREATE SEQUENCE photos")


def keys(bench, session):
    """Each kind of key that the database makes: its name here, and its column."""
    kinds = {
        IDENTITY: "bigint GENERATED ALWAYS AS IDENTITY",
        OURS: "bigint DEFAULT next_id(5, 'photos')",
        "`insta5.next_id`, and its CHECK": "bigint DEFAULT insta5.next_id() CHECK (id_shard(id) = 5)",
        "the published function": "bigint DEFAULT published.published_next_id()",
        "`uuid`, `gen_random_uuid()`": "uuid DEFAULT gen_random_uuid()",
    }
    if session.info.server_version >= 180000:
        kinds["`uuid`, `uuidv7()`"] = "uuid DEFAULT uuidv7()"
    if bench.snowflake:
        session.execute("CREATE EXTENSION IF NOT EXISTS snowflake; CREATE SEQUENCE IF NOT EXISTS flakes")
        kinds["pgEdge's `snowflake.nextval`"] = "bigint DEFAULT snowflake.nextval('flakes')"
    return kinds


def inserts(bench):
    """A million rows by INSERT ... SELECT, into a table of a key and one column."""
    session = bench.database("rows", prepare)
    rows = bench.size(1_000_000, 100_000)
    kinds = {
        kind: (column, f"INSERT INTO t (v) SELECT generate_series(1, {rows})")
        for kind, column in keys(bench, session).items()
    }
    session.execute(MADE_BEFORE.format(rows=rows))
    session.execute("VACUUM ANALYZE made_before")
    kinds["`bigint`, a Snowflake made before"] = ("bigint", "INSERT INTO t SELECT snowflake, v FROM made_before")
    kinds["`bytea`, an ObjectId made before"] = ("bytea", "INSERT INTO t SELECT object_id, v FROM made_before")
    took = Table("inserts", f"INSERT of {rows:,} rows, by the kind of key", "s")
    size = Table("inserts", "The index of their primary key", "MB")
    fill(bench, session, kinds, took, size)
    bench.show(took)
    bench.show(size)


def copies(bench):
    """The same rows by COPY, from a file without keys."""
    session = bench.database("rows", prepare)
    rows = bench.size(1_000_000, 100_000)
    file = DIRECTORY / "rows"
    session.execute(f"COPY (SELECT generate_series(1, {rows})) TO '{file}'")
    kinds = {kind: (column, f"COPY t (v) FROM '{file}'") for kind, column in keys(bench, session).items()}
    took = Table("copies", f"COPY of {rows:,} rows, by the kind of key", "s")
    fill(bench, session, kinds, took)
    bench.show(took)


def fill(bench, session, kinds, took, size=None):
    """Makes and fills a table of each kind, a new one each round. A primary key has no duplicates."""
    waited = []
    for _ in bench.rounds(3, 1):
        for kind, (column, statement) in kinds.items():
            session.execute(f"CREATE TABLE t (id {column} PRIMARY KEY, v int)")
            session.execute("CHECKPOINT")
            session.execute("SELECT insta_ids.stat_reset()")
            of = None if kind == IDENTITY else IDENTITY
            took.add(kind, bench.took(session, statement), of)
            if kind == OURS:
                waited.append(value(session, "SELECT extract(epoch FROM wait_time)::float FROM insta_ids.stat_ids"))
            if size:
                size.add(kind, value(session, "SELECT pg_relation_size('t_pkey')") / 1024**2, of)
            session.execute("DROP TABLE t")
    took.notes.append(
        f"{OURS} waited {statistics.median(waited):.2f} s of that for the clock, as a sequence has 1024 ids per ms."
    )


def caches(bench):
    """The same rows by eight sessions at once, into one table, by the CACHE of its sequence."""
    session = bench.database("rows", prepare)
    rows, count = bench.size(1_000_000, 100_000), 8
    took = Table("caches", f"INSERT of {rows:,} rows by {count} sessions, by the CACHE of the sequence", "s")
    size = Table("caches", "The index of their primary key", "MB")
    base = "`next_id`, CACHE 1"
    with connections("rows", count) as backends:
        for _ in bench.rounds(3, 1):
            for cache in (1, 32, 1024):
                for way, default in (("nextval", "nextval('cached')"), ("next_id", "next_id(5, 'cached')")):
                    session.execute(f"CREATE SEQUENCE cached CACHE {cache}")
                    session.execute(f"CREATE TABLE t (id bigint DEFAULT {default} PRIMARY KEY, v int)")
                    session.execute("CHECKPOINT")
                    insert = f"INSERT INTO t (v) SELECT generate_series(1, {rows // count})"
                    began = time.monotonic()
                    at_once([lambda backend=backend: backend.execute(insert) for backend in backends])
                    name = f"`{way}`, CACHE {cache}"
                    took.add(name, time.monotonic() - began, base if name != base else None)
                    size.add(
                        name,
                        value(session, "SELECT pg_relation_size('t_pkey')") / 1024**2,
                        base if name != base else None,
                    )
                    session.execute("DROP TABLE t; DROP SEQUENCE cached")
    bench.show(took)
    bench.show(size)
