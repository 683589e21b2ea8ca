"""The rows of three tables, distributed to shards under eight writers, beside a plain copy of as many rows."""

import random
import statistics
import threading
import time

import psycopg

from figures import Table
from moves import WRITERS, Node
from server import own_kb, value

SHARDS = 256
TABLES = ("users", "photos", "likes")
MIGRATION = """
    CREATE TABLE users (id bigint PRIMARY KEY DEFAULT next_id(), name text);
    CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL REFERENCES users, title text);
    CREATE TABLE likes (photo_id bigint REFERENCES photos, user_id bigint, PRIMARY KEY (photo_id, user_id));
    CREATE INDEX ON photos (user_id)"""
SOURCES = """
    CREATE TABLE users (id bigserial PRIMARY KEY, name text);
    CREATE TABLE photos (id bigserial PRIMARY KEY, user_id bigint NOT NULL REFERENCES users, title text);
    CREATE TABLE likes (photo_id bigint REFERENCES photos ON DELETE CASCADE, user_id bigint, PRIMARY KEY (photo_id, user_id));
    CREATE INDEX ON photos (user_id)"""


BESIDE = "the same under the clients"


class Clients:
    """Clients that insert, update and delete photos with their likes, and give photos to other users, every few milliseconds.

    In a phase of this name, `took` has how long each of their transactions took, in milliseconds.
    """

    def __init__(self, node, users):
        self.node = node
        self.users = users
        self.phase = "before"
        self.took = {}
        self.photos = [{} for _ in range(WRITERS)]
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.write, args=[n]) for n in range(WRITERS)]

    def write(self, number):
        chance = random.Random(number)
        photos = self.photos[number]
        with self.node.connect() as session:
            while not self.stop.is_set():
                phase, began = self.phase, time.monotonic()
                try:
                    self.change(session, chance, photos)
                except psycopg.errors.ReadOnlySqlTransaction:
                    return
                self.took.setdefault(phase, []).append(1000 * (time.monotonic() - began))
                time.sleep(0.004)

    def change(self, session, chance, photos):
        user, kind = chance.randint(1, self.users), chance.randrange(10)
        if kind < 6 or not photos:
            with session.transaction():
                insert = "INSERT INTO photos (user_id, title) VALUES (%s, 'new') RETURNING id"
                photo = value(session, insert, user)
                session.execute("INSERT INTO likes VALUES (%s, %s)", (photo, user))
            photos[photo] = user
            return
        photo = chance.choice(list(photos)[-100:])
        if kind < 9:
            session.execute("UPDATE photos SET user_id = %s WHERE id = %s", (user, photo))
            photos[photo] = user
        else:
            session.execute("DELETE FROM photos WHERE id = %s", (photo,))
            del photos[photo]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def fill(session, rows):
    """A tenth are users, three tenths photos, and the rest likes. Returns the number of users."""
    users, photos, likes = rows // 10, rows * 3 // 10, rows * 6 // 10
    session.execute(SOURCES)
    session.execute(f"INSERT INTO users (name) SELECT md5(n::text) FROM generate_series(1, {users}) n")
    session.execute(
        f"INSERT INTO photos (user_id, title) SELECT 1 + n % {users}, md5(n::text) FROM generate_series(1, {photos}) n"
    )
    session.execute(f"INSERT INTO likes SELECT 1 + n % {photos}, n FROM generate_series(1, {likes}) n")
    session.execute("VACUUM ANALYZE")
    return users


def plain(session):
    """How long INSERT ... SELECT takes for the same rows, into one table each with the same keys and indexes."""
    session.execute(f"CREATE SCHEMA plain; SET search_path = plain; {SOURCES}; SET search_path = public")
    began = time.monotonic()
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    for table in TABLES:
        session.execute(f"INSERT INTO plain.{table} SELECT * FROM public.{table}")
    session.execute("COMMIT")
    took = time.monotonic() - began
    session.execute("DROP SCHEMA plain CASCADE")
    return took


def wrong_rows(session, photos):
    """How many photos are not where and what the clients were told, and how many rows the tables and the shards differ by."""
    shards = range(SHARDS)
    everywhere = " UNION ALL ".join(f"SELECT {n} AS shard, id, user_id FROM insta{n}.photos" for n in shards)
    session.execute(f"CREATE TEMP TABLE everywhere AS {everywhere}")
    there = dict(session.execute("SELECT id, user_id FROM everywhere WHERE shard = user_id %% %s", (SHARDS,)).fetchall())
    wrong = sum(there.get(photo) != user for photo, user in photos.items())
    for table in TABLES:
        rows = " + ".join(f"(SELECT count(*) FROM insta{n}.{table})" for n in shards)
        wrong += abs(value(session, f"SELECT {rows} - (SELECT count(*) FROM {table})"))
    return wrong


def p99(samples):
    return statistics.quantiles(samples, n=100)[98]


BULK = {
    "UPDATE": "UPDATE {table} SET title = 'new ' || title",
    "INSERT": "INSERT INTO {table} SELECT {rows} + n, n, md5(n::text) FROM generate_series(1, {rows}) n",
    "DELETE": "DELETE FROM {table} WHERE id <= {rows}",
}


def recorded(bench):
    """Statements that change many rows of a table that is being distributed, compared with the same on another table."""
    rows = bench.size(300_000, 30_000)
    took = Table("recorded", f"Statements that change {rows:,} rows of a table", "s")
    for number in bench.rounds(5, 1):
        session = bench.database(f"recorded{number}")
        session.execute("SELECT insta_ids.init(4)")
        table = "CREATE TABLE photos (id bigint PRIMARY KEY, user_id bigint NOT NULL, title text)"
        session.execute("SELECT insta_ids.add_migration('tables', %s, ids_since => '2011-08-26')", (table,))
        session.execute("CALL insta_ids.create_shards(0, 3)")
        session.execute(f"{table}; CREATE INDEX ON photos (user_id); CREATE TABLE plain (LIKE photos INCLUDING ALL)")
        for name in ("photos", "plain"):
            session.execute(f"INSERT INTO {name} SELECT n, n, md5(n::text) FROM generate_series(1, {rows}) n")
        session.execute("SELECT insta_ids.distribute_table('photos', 'user_id')")
        session.execute("CALL insta_ids.distribute()")
        session.execute("VACUUM ANALYZE photos, plain")
        for kind, statement in BULK.items():
            for name in ("plain", "photos"):
                began = time.monotonic()
                session.execute(statement.format(table=name, rows=rows))
                took.add(
                    f"{kind}, {'recorded' if name == 'photos' else 'without'}",
                    time.monotonic() - began,
                    of=f"{kind}, without" if name == "photos" else None,
                )
        session.close()
    bench.show(took)


def distribute(bench):
    """From three tables into 256 shards, under clients that write all the time."""
    rows = bench.size(10_000_000, 100_000)
    took = Table("distribute", f"{rows:,} rows of three tables to {SHARDS} shards, under {WRITERS} clients", "s")
    waited = Table("distribute", "99 of 100 transactions of the clients were faster than", "ms")
    node = Node("distribute", settings=["max_locks_per_transaction = 512"])
    try:
        with node.connect() as session, node.connect() as caller:
            session.execute("CREATE EXTENSION insta_ids")
            session.execute(f"SELECT insta_ids.init({SHARDS})")
            session.execute("SELECT insta_ids.add_migration('tables', %s, ids_since => '2011-08-26')", (MIGRATION,))
            session.execute(f"CALL insta_ids.create_shards(0, {SHARDS - 1})")
            users = fill(session, rows)
            took.add("`INSERT ... SELECT` into one table each, without clients", plain(session))
            for table, key in zip(TABLES, ("id", "user_id", "photo_id")):
                caller.execute("SELECT insta_ids.distribute_table(%s, %s)", (table, key))
            memory = []
            with Clients(node, users) as clients:
                time.sleep(bench.size(20, 2))
                clients.phase = "during `INSERT ... SELECT`"
                took.add(BESIDE, plain(session))
                clients.phase, done, began = "during `distribute`", threading.Event(), time.monotonic()

                def watch():
                    while not done.wait(0.5):
                        memory.append(own_kb(caller))

                watcher = threading.Thread(target=watch)
                watcher.start()
                caller.execute("CALL insta_ids.distribute()")
                done.set()
                watcher.join()
                took.add("`distribute`, with all rows compared", time.monotonic() - began, of=BESIDE)
                clients.phase, began = "at the switch", time.monotonic()
                caller.execute("SELECT insta_ids.distribute_switch()")
                took.add("`distribute_switch`", time.monotonic() - began)
                time.sleep(0.2)
            told = {photo: user for photos in clients.photos for photo, user in photos.items()}
            wrong = wrong_rows(session, told)
            for phase, samples in clients.took.items():
                if len(samples) > 100:
                    waited.add(phase, p99(samples))
                waited.notes.append(f"{phase}: {len(samples):,} transactions, the longest took {max(samples):.0f} ms.")
            third = max(1, len(memory) // 3)
            took.notes.append(f"{len(told):,} photos of the clients were looked for: {wrong} lost, twice or elsewhere.")
            took.notes.append(
                f"Memory of the caller: at most {max(memory[:third]) / 1024:.0f} MB in the first third of the time,"
                f" {max(memory) / 1024:.0f} MB in all of it."
            )
    finally:
        node.script("remove")
    bench.show(took)
    bench.show(waited)
    if wrong:
        raise SystemExit(f"bench: {wrong} rows are not where they should be")
