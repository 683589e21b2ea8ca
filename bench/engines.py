"""Several servers: a call through PL/Proxy, and how many ids each writer slot has."""

import time

from figures import Table
from moves import Node
from server import value

FUNCTION = "CREATE FUNCTION user_of_photo(id bigint) RETURNS bigint"
FOUND = "LANGUAGE sql RETURN (SELECT p.user_id FROM insta5.photos p WHERE p.id = user_of_photo.id)"
ROUTED = "LANGUAGE plproxy AS $$ CLUSTER 'insta'; RUN ON id_shard(id); $$"


def plproxy(bench):
    """A row read by a function, where it is and through PL/Proxy on another server."""
    node, router = Node("a"), Node("r")
    table = Table("plproxy", "A row read by its id, one client", "µs")
    calls = bench.size(20_000, 2_000)
    try:
        with node.connect() as there, router.connect() as session:
            if not value(session, "SELECT count(*) FROM pg_available_extensions WHERE name = 'plproxy'"):
                print("SKIPPED: this PostgreSQL has no plproxy\n")
                return
            there.execute("CREATE EXTENSION insta_ids")
            there.execute("SELECT insta_ids.init(100)")
            migration = "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL)"
            there.execute("SELECT insta_ids.add_migration('0001', %s)", [migration])
            there.execute("SELECT insta_ids.add_node('a', %s), insta_ids.assign(0, 99, 'a')", [node.dsn])
            there.execute("CALL insta_ids.create_shards(5, 5)")
            there.execute("INSERT INTO insta5.photos (user_id) SELECT generate_series(1, 10000)")
            there.execute(f"{FUNCTION} {FOUND}")
            shard_map = value(there, "SELECT insta_ids.shard_map()::text")
            session.execute("CREATE EXTENSION insta_ids; CREATE EXTENSION plproxy")
            session.execute("SELECT insta_ids.apply_map(%s::text::jsonb)", [shard_map])
            session.execute("SELECT insta_ids.install_plproxy('insta')")
            session.execute(f"{FUNCTION} {ROUTED}")
            photo = value(there, "SELECT max(id) FROM insta5.photos")
            for _ in bench.rounds(5, 2):
                for name, asked, of in (
                    ("where it is", there, None),
                    ("through PL/Proxy", session, "where it is"),
                ):
                    began = time.monotonic()
                    for _ in range(calls):
                        asked.execute("SELECT user_of_photo(%s)", [photo], prepare=True)
                    table.add(name, (time.monotonic() - began) / calls * 1e6, of)
    finally:
        for one in (node, router):
            one.script("remove")
    bench.show(table)


def writers(bench):
    """One sequence at full speed by one session, with slots of more and more servers."""
    table = Table("writers", "One sequence at full speed, by its writer slot", "ids/ms")
    slots = ("0/1", "1/2", "1/4", "1/8")
    nodes = {slot: Node(f"w{slot[2:]}", settings=[f"insta_ids.writer_slot = '{slot}'"]) for slot in slots}
    ids = bench.size(500_000, 100_000)
    try:
        for node in nodes.values():
            with node.connect() as session:
                session.execute("CREATE EXTENSION insta_ids; CREATE SEQUENCE s")
                session.execute("SELECT insta_ids.acquire_writer_slot('-infinity')")
        for _ in bench.rounds(5, 2):
            for slot, node in nodes.items():
                with node.connect() as session:
                    minted, ms = session.execute(
                        "SELECT count(DISTINCT id), max(id >> 23) - min(id >> 23) + 1"
                        " FROM (SELECT next_id(5, 's') AS id FROM generate_series(1, %s) OFFSET 0) m",
                        [ids],
                    ).fetchone()
                if minted != ids:
                    raise RuntimeError(f"{ids - minted} ids repeated")
                table.add(slot, ids / ms, None if slot == "0/1" else "0/1")
    finally:
        for node in nodes.values():
            node.script("remove")
    bench.show(table)
