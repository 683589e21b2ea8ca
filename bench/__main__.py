"""The bench: `make bench` runs it, see scripts/bench. Each part is a function of its name below."""

import datetime
import os
import pathlib
import sys

import figures
import plots
from adoption import adoption
from ddl import ddl
from distribute import distribute, recorded
from engines import plproxy, writers
from fleet import fleet
from minting import calls, growth, latency, sessions
from moves import moves, pauses, shapes
from reading import decoding, masking, ranges
from rows import caches, copies, inserts
from server import about, connect, value
from shards import all_shards, shards
from wal import wal

PARTS = [
    calls,
    sessions,
    latency,
    growth,
    inserts,
    caches,
    copies,
    decoding,
    ranges,
    masking,
    wal,
    ddl,
    shards,
    adoption,
    moves,
    recorded,
    plproxy,
    writers,
    all_shards,
    pauses,
    shapes,
    fleet,
    distribute,
]

# These take minutes to an hour, so they run only if they are named, or with `all`.
NAMED_ONLY = [all_shards, pauses, shapes, fleet, distribute]


class Bench:
    """What all parts share: how much there is to do, the databases, what was looked at, and the results."""

    def __init__(self):
        self.quick = os.environ.get("BENCH") == "quick"
        self.snowflake = os.environ.get("PEER_SNOWFLAKE") == "1"
        self.prepared = set()
        self.tables = []
        self.looked_at = 0
        self.duplicates = 0

    def size(self, full, quick):
        return quick if self.quick else full

    def rounds(self, full, quick):
        return range(self.size(full, quick))

    def database(self, name, prepare=None):
        """A session in a database that has the extension, and what `prepare` makes, once."""
        fresh = name not in self.prepared
        if fresh:
            self.prepared.add(name)
            with connect("postgres") as postgres:
                postgres.execute(f"CREATE DATABASE {name}")
        session = connect(name)
        if fresh:
            session.execute("CREATE EXTENSION insta_ids")
            session.execute(pathlib.Path("bench/mint.sql").read_text())
            if prepare:
                prepare(session)
        return session

    def took(self, session, query, times=1):
        """How long a query took, so many times, in seconds."""
        return value(session, "SELECT took(%s, %s)", query, times)

    def minted(self, session, unique):
        """How long all that was minted since the last time took, in seconds, and the duplicates in it."""
        seconds = value(session, "SELECT extract(epoch FROM max(ended) - min(began))::float FROM minted")
        ids, repeated = session.execute(
            "SELECT count(*), count(*) - count(DISTINCT id) FROM minted, unnest(made) id"
        ).fetchone()
        session.execute("TRUNCATE minted")
        if unique:
            self.looked_at += ids
            self.duplicates += repeated
        return seconds, repeated

    def show(self, table):
        self.tables.append(table)
        print(figures.markdown(table.as_json()), flush=True)


def main(names):
    known = {part.__name__.replace("_", "-"): part for part in PARTS}
    if unknown := [name for name in names if name not in known and name != "all"]:
        sys.exit(f"bench: no such part: {', '.join(unknown)}; there are {', '.join(known)}, and all of them by `all`")
    if "all" in names:
        parts = PARTS
    else:
        parts = [known[name] for name in names] or [part for part in PARTS if part not in NAMED_ONLY]
    bench = Bench()
    with connect("postgres") as session:
        run = about(session)
    run |= {"date": datetime.date.today().isoformat(), "quick": bench.quick}
    print(figures.described(run), flush=True)
    for part in parts:
        part(bench)
    if bench.looked_at:
        print(
            f"{bench.looked_at:,} of the ids of next_id that were timed were looked at: {bench.duplicates} duplicates."
        )
    run |= {"looked_at": bench.looked_at, "duplicates": bench.duplicates}
    results = pathlib.Path(os.environ["BENCH_RESULTS"])
    figures.save(results, run, bench.tables)
    plots.draw(results / "bench.json", results)
    print(f"bench.json, its tables and plots of it are in {results}")
    if bench.duplicates:
        sys.exit("bench: there must be no duplicate")


main(sys.argv[1:])
