"""A fleet seen, planned and rebalanced from one of its nodes."""

import contextlib
import random
import time

from figures import Table
from moves import FILL, WRITERS, Node, Writers, join
from server import value

# As many shards as ids of Instagram's layout have.
ALL_SHARDS = 8192


@contextlib.contextmanager
def servers(count, settings=()):
    """So many nodes, which are removed in the end."""
    nodes = []
    try:
        for n in range(count):
            nodes.append(Node(f"n{n}", settings=settings))
        yield nodes
    finally:
        for node in nodes:
            node.script("remove")


def plans(bench):
    """8192 shards on 50 servers, of which ten have three times as much as the others."""
    count = bench.size(50, 4)
    took = Table("fleet", f"A fleet of {count} nodes and {ALL_SHARDS:,} shards, asked on one of them", "s")
    full, rest = count // 5, count - count // 5
    small = ALL_SHARDS // (3 * full + rest)
    ends = [3 * small * (n + 1) for n in range(full)]
    ends += [ends[-1] + small * (n + 1) for n in range(rest - 1)] + [ALL_SHARDS]
    with servers(count, ["shared_buffers = 16MB", "max_connections = 20", "max_locks_per_transaction = 256"]) as nodes:
        join(*nodes, shards=ALL_SHARDS, ends=ends)
        with nodes[0].connect() as session:
            session.execute("CALL insta_ids.migrate_fleet()")
        for node, first, end in zip(nodes, [0, *ends], ends):
            with node.connect() as session:
                session.execute(f"CALL insta_ids.create_shards({first}, {end - 1})")
        with nodes[0].connect() as session:
            for _ in bench.rounds(5, 2):
                for query in ("fleet('10 ms')", "rebalance_plan('shards')"):
                    began = time.monotonic()
                    rows = session.execute(f"SELECT * FROM insta_ids.{query}").fetchall()
                    took.add(f"`{query}`", time.monotonic() - began)
            took.notes.append(f"The plan has {len(rows)} moves; the fullest node has {rows[-1][-1]:g} times the average.")
    bench.show(took)


def rebalance(bench):
    """64 shards of random sizes, all on one of four nodes, are spread by one call."""
    rows = bench.size(1_000_000, 100_000)
    took = Table("fleet", f"{rows:,} rows in 64 shards, all on one of four nodes, under {WRITERS} writers", "s")
    stopped = Table("fleet", "The longest that a writer got no row in that", "ms")
    balances, written = [], 0
    for n in bench.rounds(3, 1):
        with servers(4) as nodes:
            join(*nodes, shards=64)
            sizes = [random.Random(f"{n} {shard}").uniform(0.2, 1.8) for shard in range(64)]
            with nodes[0].connect() as session:
                session.execute("CALL insta_ids.create_shards(0, 63)")
                for shard, size in enumerate(sizes):
                    session.execute(FILL.format(f"insta{shard}", int(rows / 64 * size)))
            schemas = [f"insta{shard}" for shard in range(0, 64, 64 // WRITERS)]
            with Writers(nodes, *schemas) as writers, nodes[1].connect() as session:
                began = time.monotonic()
                session.execute("CALL insta_ids.rebalance(at_once => 2)")
                took.add("`rebalance(at_once => 2)`", time.monotonic() - began)
                balances.append(value(session, "SELECT max(bytes) / avg(bytes) FROM insta_ids.fleet('10 ms')"))
            stopped.add("by `rebalance`", writers.longest * 1000)
            written += require_all(nodes, schemas, writers.ids)
    took.notes.append(f"In the end the fullest node had {max(balances):.3f} times the average, or less.")
    stopped.notes.append(f"{written:,} rows written meanwhile: none lost, no id twice.")
    bench.show(took)
    bench.show(stopped)


def require_all(nodes, schemas, ids):
    """Returns how many ids clients got, each of which must be there, once."""
    there = []
    for node in nodes:
        with node.connect() as session:
            for schema in schemas:
                if value(session, "SELECT to_regclass(%s) IS NOT NULL", f"{schema}.photos"):
                    there += [id for (id,) in session.execute(f"SELECT id FROM {schema}.photos WHERE user_id = 31341")]
    if len(set(ids)) != len(ids) or not set(ids) <= set(there) or len(set(there)) != len(there):
        raise RuntimeError(f"{len(set(ids) - set(there))} rows lost, {len(ids) - len(set(ids))} ids repeated")
    return len(ids)


def fleet(bench):
    """50 nodes planned, and four nodes rebalanced under writers."""
    plans(bench)
    rebalance(bench)
