"""Shards moved to another server under eight writers, beside plain logical replication of as many rows."""

import pathlib
import re
import threading
import time

import psycopg

from figures import Table
from server import run, value

WRITERS = 8
SHARDS = 4

MIGRATION = (
    "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL, caption text);"
    " CREATE INDEX ON photos (user_id, id)"
)
# Tables that logical replication has more to do with.
SHAPES = {
    "a primary key": MIGRATION,
    "REPLICA IDENTITY FULL": MIGRATION + "; ALTER TABLE photos REPLICA IDENTITY FULL",
    "rows of 10 kB": MIGRATION.replace("caption text", "caption text DEFAULT repeat('0123456789', 1000)")
    + "; ALTER TABLE photos ALTER caption SET STORAGE EXTERNAL",
    "200 partitions": MIGRATION.replace("caption text)", "caption text) PARTITION BY HASH (id)")
    + "".join(
        f"; CREATE TABLE photos_{n} PARTITION OF photos FOR VALUES WITH (MODULUS 200, REMAINDER {n})"
        for n in range(200)
    ),
}
FILL = "INSERT INTO {}.photos (user_id, caption) SELECT g, repeat(md5(g::text), 3) FROM generate_series(1, {}) g"


class Node:
    """A server of its own, whose clock can be behind."""

    def __init__(self, name, behind_s=0, settings=()):
        self.name = name
        self.cluster = f"bench_{name}"
        own = ["shared_preload_libraries = 'insta_ids'", f"insta_ids.node = '{name}'", "wal_level = logical"]
        own += ["shared_buffers = 512MB", "max_wal_size = 8GB", "fsync = on"]
        # How long the server waits between two subscriptions that it begins with.
        own.append("wal_retrieve_retry_interval = '100ms'")
        self.script("remove")
        self.directory = self.script("make", *own, *settings)
        clock = pathlib.Path(self.directory, "clock")
        clock.write_text(f"-{behind_s:.3f}\n")
        faketime = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
        environment = [
            f"LD_PRELOAD={faketime}",
            f"FAKETIME_TIMESTAMP_FILE={clock}",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            "FAKETIME_NO_CACHE=1",
        ]
        # Such a clock takes longer to read than a real one.
        self.script("start", *(environment if behind_s else []))
        self.dsn = f"host={self.directory} user=postgres dbname=postgres"

    def script(self, action, *arguments):
        return run("scripts/cluster", action, self.cluster, *arguments).strip()

    def connect(self):
        return psycopg.connect(self.dsn, autocommit=True)


class Writers:
    """Eight clients that insert a row every few milliseconds into a schema, on whichever of the nodes takes it.

    With more schemas than one, each client has its own.
    """

    def __init__(self, nodes, *schemas):
        self.nodes = nodes
        self.ids = []
        self.longest = 0
        self.stop = threading.Event()
        self.threads = [
            threading.Thread(target=self.write, args=[schemas[n % len(schemas)]]) for n in range(WRITERS)
        ]

    def write(self, schema):
        insert = f"INSERT INTO {schema}.photos (user_id) VALUES (31341) RETURNING id"
        turn = 0
        session = self.nodes[0].connect()
        last = time.monotonic()
        while not self.stop.is_set():
            try:
                self.ids.append(session.execute(insert).fetchone()[0])
            except (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.UndefinedTable):
                turn += 1
                session.close()
                time.sleep(0.002)
                session = self.nodes[turn % len(self.nodes)].connect()
                continue
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            last = now
            time.sleep(0.005)
        session.close()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *_):
        time.sleep(0.5)
        self.stop.set()
        for thread in self.threads:
            thread.join()


def plain(source, target, name, rows):
    """How long PostgreSQL takes to copy as many tables, until they follow the source."""
    for node in (source, target):
        with node.connect() as session:
            for n in range(SHARDS):
                session.execute(f"CREATE SCHEMA {name}_{n}; CREATE SEQUENCE {name}_{n}.s")
                table = MIGRATION.replace("photos", f"{name}_{n}.photos").replace(
                    "next_id()", f"next_id(99, '{name}_{n}.s')"
                )
                session.execute(table)
                if node is source:
                    session.execute(FILL.format(f"{name}_{n}", rows // SHARDS))
    with source.connect() as session:
        tables = ", ".join(f"{name}_{n}.photos" for n in range(SHARDS))
        session.execute(f"CREATE PUBLICATION {name} FOR TABLE {tables}")
    with target.connect() as session, Writers([source], f"{name}_0"):
        began = time.monotonic()
        session.execute(f"CREATE SUBSCRIPTION {name} CONNECTION '{source.dsn}' PUBLICATION {name}")
        while value(session, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'"):
            time.sleep(0.1)
        took = time.monotonic() - began
    with target.connect() as session:
        session.execute(f"DROP SUBSCRIPTION {name}")
    with source.connect() as session:
        session.execute(f"DROP PUBLICATION {name}")
    return took


def moved(source, target, first, rows, verify):
    """How long a move copies, and keeps writers waiting; in seconds."""
    last = first + SHARDS - 1
    with source.connect() as session:
        session.execute(f"CALL insta_ids.create_shards({first}, {last})")
        for n in range(first, last + 1):
            session.execute(FILL.format(f"insta{n}", rows // SHARDS))
    times = {}

    def noted(notice):
        if step := re.match("move_shards: (prepared|compares|fenced|handed over)", notice.message_primary):
            times[step[1]] = time.monotonic()

    with Writers([source, target], f"insta{first}") as writers, target.connect() as session:
        session.add_notice_handler(noted)
        session.execute(f"CALL insta_ids.move_shards({first}, {last}, 'a', verify => '{verify}')")
    with target.connect() as session:
        there = {id for (id,) in session.execute(f"SELECT id FROM insta{first}.photos")}
    lost, repeated = len(set(writers.ids) - there), len(writers.ids) - len(set(writers.ids))
    if lost or repeated:
        raise RuntimeError(f"{lost} rows lost, {repeated} ids repeated")
    copied = times.get("compares", times["fenced"])
    return copied - times["prepared"], times["handed over"] - times["fenced"], writers


def join(*nodes, migration=MIGRATION, shards=100, ends=()):
    """Creates the extension on servers, and a map on which all shards are on the first, or up to each end on the next."""
    with nodes[0].connect() as session:
        session.execute("CREATE EXTENSION insta_ids")
        session.execute("SELECT insta_ids.init(%s)", [shards])
        session.execute("SELECT insta_ids.add_migration('0001', %s)", [migration])
        for node in nodes:
            session.execute("SELECT insta_ids.add_node(%s::text, %s)", [node.name, node.dsn])
        ends = ends or [shards]
        for node, first, end in zip(nodes, [0, *ends], ends):
            session.execute("SELECT insta_ids.assign(%s, %s, %s::text)", [first, end - 1, node.name])
        shard_map = value(session, "SELECT insta_ids.shard_map()::text")
    for node in nodes[1:]:
        with node.connect() as session:
            session.execute("CREATE EXTENSION insta_ids")
            session.execute("SELECT insta_ids.apply_map(%s::text::jsonb)", [shard_map])


def pauses(bench):
    """Moves of four shards from one server to the other and back again, thirty times for each number of rows."""
    stopped = Table("pauses", f"The longest that a writer got no row in a move, {WRITERS} writers", "ms")
    for rows in bench.size((10_000, 1_000_000, 10_000_000), (10_000,)):
        source, target = Node("a"), Node("b")
        try:
            join(source, target)
            with source.connect() as session:
                session.execute(f"CALL insta_ids.create_shards(0, {SHARDS - 1})")
                for n in range(SHARDS):
                    session.execute(FILL.format(f"insta{n}", rows // SHARDS))
            for _ in bench.rounds(30, 4):
                with Writers([source, target], "insta0") as writers, target.connect() as session:
                    session.execute(f"CALL insta_ids.move_shards(0, {SHARDS - 1}, '{source.name}')")
                stopped.add(f"{rows:,} rows", writers.longest * 1000)
                print(f"{rows:,} rows: {writers.longest * 1000:.0f} ms", flush=True)
                with source.connect() as session:
                    session.execute("SELECT insta_ids.drop_shard(s) FROM generate_series(0, %s) s", [SHARDS - 1])
                source, target = target, source
        finally:
            for node in (source, target):
                node.script("remove")
    bench.show(stopped)


def shapes(bench):
    """Moves of a shard with one table, which is not as simple as the others are."""
    rows = bench.size(100_000, 5_000)
    took = Table("shapes", f"{rows:,} rows in one shard moved, under {WRITERS} writers", "s")
    stopped = Table("shapes", "The longest that a writer got no row in that", "ms")
    nodes = {}
    try:
        for shape, migration in SHAPES.items():
            nodes[shape] = [Node(f"a{len(nodes)}"), Node(f"b{len(nodes)}")]
            join(*nodes[shape], migration=migration)
            with nodes[shape][0].connect() as session:
                session.execute("SELECT insta_ids.create_shard(0)")
                session.execute("INSERT INTO insta0.photos (user_id) SELECT g FROM generate_series(1, %s) g", [rows])
        plainest = next(iter(SHAPES))
        for _ in bench.rounds(5, 1):
            for shape, (source, target) in nodes.items():
                with Writers([source, target], "insta0") as writers, target.connect() as session:
                    began = time.monotonic()
                    session.execute(f"CALL insta_ids.move_shards(0, 0, '{source.name}')")
                    took.add(shape, time.monotonic() - began, plainest if shape != plainest else None)
                stopped.add(shape, writers.longest * 1000)
                with source.connect() as session:
                    session.execute("SELECT insta_ids.drop_shard(0)")
                nodes[shape].reverse()
    finally:
        for pair in nodes.values():
            for node in pair:
                node.script("remove")
    bench.show(took)
    bench.show(stopped)


def moves(bench):
    """300,000 rows in four shards."""
    rows = bench.size(300_000, 20_000)
    copied = Table("moves", f"{rows:,} rows in {SHARDS} shards copied, under {WRITERS} writers", "s")
    stopped = Table("moves", "How long the move closed the shards to writers", "ms")
    written = 0
    for behind_s in bench.size((0.2, 300), (300,)):
        source, target = Node("a"), Node("b", behind_s)
        try:
            join(source, target)
            for n in bench.rounds(3, 1):
                copied.add("plain logical replication", plain(source, target, f"plain{n}", rows))
                for place, verify in enumerate(("snapshot", "none")):
                    copy, stop, writers = moved(source, target, SHARDS * (2 * n + place), rows, verify)
                    copied.add(f"`move_shards`, verify => '{verify}'", copy, "plain logical replication")
                    clock = f"target {behind_s:g} s behind, verify => '{verify}'"
                    stopped.add(f"from fence to hand-over, {clock}", stop * 1000)
                    stopped.add(f"the longest that a writer got no row, {clock}", writers.longest * 1000)
                    written += len(writers.ids)
        finally:
            for node in (source, target):
                node.script("remove")
    stopped.notes.append(f"{written:,} rows written meanwhile: none lost, no id twice.")
    bench.show(copied)
    bench.show(stopped)
