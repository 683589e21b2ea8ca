"""Making shards, looking at them, migrating them: beside the same DDL sent by psql."""

import pathlib
import time

from figures import Table, counted
from server import DIRECTORY, own_kb, psql


def statements(first, last):
    """Paragraphs of bench/shard.sql, the DDL of one shard."""
    text = "\n".join(
        line for line in pathlib.Path("bench/shard.sql").read_text().splitlines() if not line.startswith("--")
    )
    return "\n".join(text.strip().split("\n\n")[first:last])


def by_hand(ddl, shards, at_a_time):
    """A script that runs the DDL for a range of shards, so many in a transaction; it begins with a multiple of that."""
    script = []
    for shard in shards:
        one = ddl.replace("{check}", " CHECK (public.id_shard(id) = {shard})").replace("{schema}", "insta{shard}.")
        one = one.replace("{shard}", str(shard))
        if at_a_time == 1:
            script.append(one)
        else:
            script.append("BEGIN;\n" * (shard % at_a_time == 0) + one + "\nCOMMIT;" * ((shard + 1) % at_a_time == 0))
    if len(shards) % at_a_time:
        script.append("COMMIT;")
    path = DIRECTORY / "by_hand.sql"
    path.write_text("\n".join(script))
    return path


def seconds(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def provision(bench, part, count, tables):
    """Makes shards both ways, each in a database of its own; returns the names of the two."""
    ddl = statements(1, tables + 1)
    took = Table(part, f"{count:,} shards of {counted(tables, 'table')} made", "s")
    memory = Table(part, "Memory of its own that the session has which makes them", "MB")
    raw, own = f"raw_{count}", f"ours_{count}"
    bench.database(raw)
    session = bench.database(own)
    session.execute("SELECT insta_ids.init(%s)", [count])
    session.execute(
        "SELECT insta_ids.add_migration('0001', %s)", [ddl.replace("{schema}", "").replace("{check}", "")]
    )
    session.execute("CHECKPOINT")
    # In turn, so that a machine that gets slower or faster does so for both.
    raw_passed = passed = 0
    step = -(-count // 16 // 50) * 50
    for first in range(0, count, step):
        last = min(first + step, count) - 1
        script = by_hand(statements(0, tables + 1), range(first, last + 1), 50)
        raw_passed += seconds(lambda: psql(raw, "-f", script))
        passed += seconds(lambda: session.execute(f"CALL insta_ids.create_shards({first}, {last})"))
        if first < count // 2 <= last + 1 or last + 1 == count:
            memory.add(f"with {last + 1:,} shards", own_kb(session) / 1024)
    took.add("DDL by hand", raw_passed)
    took.add("`create_shards`", passed, "DDL by hand")
    session.close()
    bench.show(took)
    bench.show(memory)
    return raw, own


def looks(bench, part, database, *views):
    """What it takes to look at all shards, the first time in a session and later."""
    table = Table(part, "All of them looked at", "ms")
    for _ in bench.rounds(5, 2):
        for view in views:
            session = bench.database(database)
            for when in ("first in a session", "later"):
                rows = []
                took = seconds(lambda: rows.extend(session.execute(f"SELECT * FROM insta_ids.{view}")))
                if view == "check()" and rows:
                    raise RuntimeError(f"check() finds something in fresh shards: {rows[:3]}")
                table.add(f"`{view}`, {when}", took * 1000)
            session.close()
    bench.show(table)


def shards(bench):
    """2000 shards of 4 tables."""
    count = bench.size(2000, 100)
    raw, own = provision(bench, "shards", count, 4)
    looks(bench, "shards", own, "shards", "migration_status", "shard_load", "check()")

    table = Table("shards", f"A column added to one table of each of {count:,} shards", "s")
    session = bench.database(own)
    for n in bench.rounds(5, 2):
        for at_a_time in (50, 1):
            column = f"by_{at_a_time}_{n}"
            script = by_hand(f"ALTER TABLE {{schema}}photos ADD {column} integer;", range(count), at_a_time)
            session.execute("CHECKPOINT")
            table.add(f"DDL by hand, {at_a_time} a transaction", seconds(lambda: psql(raw, "-f", script)))
        session.execute("SELECT insta_ids.add_migration(%s, %s)", [f"a{n}", f"ALTER TABLE photos ADD a{n} integer"])
        session.execute("CHECKPOINT")
        table.add(
            "`migrate`", seconds(lambda: session.execute("CALL insta_ids.migrate()")), "DDL by hand, 50 a transaction"
        )
    bench.show(table)
    fenced(bench, "shards", own)


def fenced(bench, part, database):
    """What a statement costs on a shard that was fenced once, while an older transaction writes."""
    times = bench.size(20_000, 1_000)
    table = Table(part, "A DELETE that finds no row, while an older transaction writes", "µs")
    with bench.database(database) as older, bench.database(database) as session:
        older.execute("BEGIN; CREATE TEMP TABLE written ()")
        session.execute("SELECT insta_ids.fence(1), insta_ids.unfence(1)")
        shards = {"a shard that was never fenced": 0, "a shard that was fenced once": 1}
        never = next(iter(shards))
        for _ in bench.rounds(15, 3):
            for shard, n in shards.items():
                took = bench.took(session, f"DELETE FROM insta{n}.photos", times)
                table.add(shard, took / times * 1e6, never if n else None)
    bench.show(table)


def all_shards(bench):
    """As many shards as ids of Instagram's layout have, of one table each."""
    count = bench.size(8192, 200)
    _, own = provision(bench, "all-shards", count, 1)
    looks(bench, "all-shards", own, "check()")
    fenced(bench, "all-shards", own)
