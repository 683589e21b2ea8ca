"""What it costs to mint: a call, and many of them, for one session and many, from few sequences and many."""

import pathlib
import tempfile
import time

from figures import Table, counted
from server import at_once, connect, connections, own_kb, program, published, value

# Sixteen sequences in turn are below the cap of each.
SEQUENCES = 16

# Extensions that make ids, too: measured where the server has them.
PEERS = {"uuid-ossp": "uuid_generate_v1mc()", "pg_uuidv7": "uuid_generate_v7()", "ulid": "gen_ulid()"}


def prepare(session):
    """Sequences, the published function, the functions without a library, and a shard."""
    published(session)
    session.execute("CREATE SCHEMA portable; SET search_path = portable")
    session.execute(pathlib.Path("sql/portable.sql").read_text())
    session.execute("RESET search_path")
    for n in range(1, SEQUENCES + 1):
        session.execute(f"CREATE SEQUENCE s{n}; CREATE SEQUENCE c{n} CACHE 32")
        session.execute(f"SELECT portable.guard_sequence('s{n}')")
    session.execute(f"""CREATE TABLE sequences AS
            SELECT n AS shard, format('s%s', n)::regclass AS s, format('c%s', n)::regclass AS c,
                   make_id('2026-01-01', n, n) AS id
            FROM generate_series(1, {SEQUENCES}) n""")
    session.execute("ANALYZE sequences")


def others(bench, session):
    """What else makes ids on this server: name and expression of each."""
    there = [("`gen_random_uuid()`", "gen_random_uuid()")]
    if session.info.server_version >= 180000:
        there.append(("`uuidv7()`", "uuidv7()"))
    available = {name for (name,) in session.execute("SELECT name FROM pg_available_extensions")}
    for extension, expression in PEERS.items():
        if extension in available:
            session.execute(f'CREATE EXTENSION IF NOT EXISTS "{extension}"')
            there.append((f"`{expression}` of {extension}", expression))
    if bench.snowflake:
        session.execute("CREATE EXTENSION IF NOT EXISTS snowflake")
        there.append(("pgEdge's `snowflake.nextval`", "snowflake.nextval(s)"))
        there.append(("pgEdge's `snowflake.nextval`, CACHE 32", "snowflake.nextval(c)"))
    return there


def calls(bench):
    """What one call costs, in one session, below the cap of a sequence."""
    session = bench.database("minting", prepare)
    table = Table("calls", "The cost of a call, the query's own loop subtracted", "ns")
    turns = bench.size(50_000, 20_000)
    each = f"SELECT count({{}}) FROM generate_series(1, {turns}), sequences"
    many = f"SELECT count(id) FROM (SELECT {{}} AS id FROM generate_series(1, {turns // 100}), sequences OFFSET 0) m"
    # What is called, in which query, less which loop of the same query, and what it is compared with.
    cases = [
        ("an empty function", "int4up(shard)", each, "shard", None),
        ("`clock_timestamp()`", "clock_timestamp()", each, "shard", None),
        ("`nextval`", "nextval(s)", each, "s", None),
        ("`next_id`", "next_id(5, s)", each, "s", "`nextval`"),
        ("`next_id` in layout `instagram`", "next_id(5, s, 'instagram')", each, "s", "`next_id`"),
        ("`next_id` in layout `twitter`", "next_id(5, s, 'twitter')", each, "s", "`next_id`"),
        ("`insta5.next_id`", "insta5.next_id(s)", each, "s", "`next_id`"),
        ("`next_ids`, 100 at a time", "next_ids(5, s, 100)", many, "generate_series(1, 100)", "`next_id`"),
        ("the published function", "published.published_next_id()", each, "shard", "`next_id`"),
        ("`next_id` of portable.sql", "portable.next_id(5, s)", each, "s", "the published function"),
        ("`nextval`, CACHE 32", "nextval(c)", each, "c", None),
        ("`next_id`, CACHE 32", "next_id(5, c)", each, "c", "`nextval`, CACHE 32"),
        *((name, expression, each, "shard", "`next_id`") for name, expression in others(bench, session)),
    ]
    for _ in bench.rounds(11, 3):
        loops = {}
        for name, expression, query, loop, of in cases:
            if (query, loop) not in loops:
                loops[query, loop] = bench.took(session, query.format(loop))
            took = bench.took(session, query.format(expression))
            table.add(name, (took - loops[query, loop]) / turns / SEQUENCES * 1e9, of)
    bench.show(table)


def sessions(bench):
    """Ids per second, for more sessions at once, from one sequence and from one each."""
    session = bench.database("minting", prepare)
    table = Table("sessions", "Ids per second, by sessions at once", "1000 ids/s")
    cap = Table("sessions", "One sequence at full speed, of its 1024 ids per ms by the ids' own times", "%")
    counts = bench.size([1, 2, 4, 8, 32], [1, 2, 8])
    for n in range(max(counts)):
        session.execute(f"CREATE SEQUENCE own{n}")
    session.execute("SELECT portable.guard_sequence('own0')")
    ids = bench.size(1_600_000, 320_000)
    # How, by which expression, how many, and whether they are ids of next_id, which must all be different.
    ways = [
        ("`nextval`, one sequence", "nextval('own0')", ids, False),
        ("`nextval`, one each", "nextval('own{n}')", ids, False),
        ("`next_id`, one sequence", "next_id(5, 'own0')", ids, True),
        ("`next_id`, one each", "next_id(5, 'own{n}')", ids, True),
        ("the published function", "published.published_next_id()", ids // 4, False),
        ("`next_id` of portable.sql, one sequence", "portable.next_id(5, 'own0')", ids // 4, True),
    ]
    repeated = 0
    with connections("minting", max(counts)) as backends:
        for _ in bench.rounds(3, 1):
            for count in counts:
                for way, expression, total, unique in ways:
                    queries = [
                        f"SELECT array_agg({expression.format(n=n)}) FROM generate_series(1, {total // count})"
                        for n in range(count)
                    ]
                    if "each" in way and "next_id" in way:
                        # Equal values of different sequences would be equal ids of one shard.
                        queries = [query.replace("(5,", f"({n},") for n, query in enumerate(queries)]
                    mint_at_once(session, backends, queries)
                    if way == "`next_id`, one sequence":
                        ms = value(session, "SELECT max(id >> 23) - min(id >> 23) + 1 FROM minted, unnest(made) id")
                        cap.add(counted(count, "session"), 100 * total / ms / 1024)
                    seconds, duplicates = bench.minted(session, unique)
                    repeated += duplicates if "published" in way else 0
                    of = f"{way}, 1 session" if count > 1 else None
                    table.add(f"{way}, {counted(count, 'session')}", total / seconds / 1000, of)
    table.notes.append(f"A sequence has 1024 ids per ms. The published function repeated {repeated} of its own ids.")
    bench.show(table)
    bench.show(cap)


def mint_at_once(session, backends, queries):
    """Runs each query in a session of its own, all from the same moment on."""
    session.execute("SELECT pg_advisory_lock(1)")

    def begin():
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        deadline = time.monotonic() + 60
        while value(session, waiting) < len(queries) and time.monotonic() < deadline:
            time.sleep(0.001)
        session.execute("SELECT pg_advisory_unlock(1)")

    minters = [lambda b=b, q=q: b.execute("SELECT mint(%s)", [q]) for b, q in zip(backends, queries)]
    at_once([*minters, begin])


def latency(bench):
    """How long single calls take, by pgbench, through a session's round trip."""
    bench.database("minting", prepare).execute("CREATE SEQUENCE asked")
    table = Table("latency", "The time a client waits for one id", "µs")
    ways = [("SELECT 1", "1"), ("`nextval`", "nextval('asked')"), ("`next_id`", "next_id(5, 'asked')")]
    for _ in bench.rounds(3, 1):
        for count in (1, 8, 32):
            for way, expression in ways:
                times = sorted(waited(expression, count, bench.size(3, 1)))
                for name, part in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
                    sessions = f"{counted(count, 'session')}, {name}"
                    of = f"SELECT 1, {sessions}" if way != "SELECT 1" else None
                    table.add(f"{way}, {sessions}", times[int(part * len(times))], of)
    bench.show(table)


def waited(expression, count, seconds):
    with tempfile.TemporaryDirectory() as directory:
        script = pathlib.Path(directory, "script")
        script.write_text(f"SELECT {expression};\n")
        options = ["-n", "-M", "prepared", "-c", count, "-j", count, "-T", seconds, "-l", "-f", script, "minting"]
        program("pgbench", *options, cwd=directory)
        for log in pathlib.Path(directory).glob("pgbench_log.*"):
            yield from (int(line.split()[2]) for line in log.read_text().splitlines())


def growth(bench):
    """What a call costs and a session keeps, for more sequences and for more shards."""
    most = bench.size(20_000, 2_000)
    session = bench.database("growth")
    for first in range(0, most, 1000):
        session.execute(
            f"DO $$BEGIN FOR n IN {first + 1} .. {first + 1000} LOOP "
            "EXECUTE format('CREATE SEQUENCE s%s', n); END LOOP; END$$"
        )
    session.execute(
        f"CREATE TABLE many AS SELECT n, format('s%s', n)::regclass AS s FROM generate_series(1, {most}) n"
    )
    session.execute("ANALYZE many")
    ids = bench.size(400_000, 40_000)

    table = Table("growth", "The cost of a call, by sequences and shards that one session uses in turn", "ns")
    session.execute("SELECT insta_ids.stat_reset()")
    for _ in bench.rounds(5, 2):
        for count in sorted({16, 256, min(4096, most), most}):
            turns = max(1, ids // count)
            query = f"SELECT count({{}}) FROM generate_series(1, {turns}), (SELECT s FROM many LIMIT {count}) m"
            loop = bench.took(session, query.format("s"))
            for way, of in (("nextval(s)", None), ("next_id(5, s)", "nextval(s)")):
                ns = (bench.took(session, query.format(way)) - loop) / turns / count * 1e9
                table.add(f"`{way}`, {count:,} sequences", ns, of and f"`{of}`, {count:,} sequences")
        for count in (1, 64, 8192):
            query = f"SELECT count({{}}) FROM generate_series(1, {ids // 16}) g, (SELECT s FROM many LIMIT 16) m"
            loop = bench.took(session, query.format("g % 8192"))
            ns = (bench.took(session, query.format(f"next_id(g % {count}, s)")) - loop) / ids * 1e9
            of = "`next_id`, 1 shard, 16 sequences" if count > 1 else None
            table.add(f"`next_id`, {counted(count, 'shard')}, 16 sequences", ns, of)
    pushed, minted = session.execute("SELECT pushed, ids FROM insta_ids.stat_ids").fetchone()
    table.notes.append(f"{pushed:,} of {minted:,} ids were pushed on by another sequence's, or at their own's cap.")
    bench.show(table)

    memory = Table("growth", "Memory that a session has of its own", "MB")
    for way in ("nextval(s)", "next_id(5, s)"):
        for count in (1, most):
            with connect("growth") as fresh:
                fresh.execute(f"SELECT count({way}) FROM (SELECT s FROM many LIMIT {count}) m")
                memory.add(f"`{way}`, {counted(count, 'sequence')}", own_kb(fresh) / 1024)
    for count in (1, 8192):
        with connect("growth") as fresh:
            fresh.execute(f"SELECT count(next_id(g % {count}, 's1')) FROM generate_series(1, 100000) g")
            memory.add(f"`next_id(n, s)`, 1 sequence, {counted(count, 'shard')}", own_kb(fresh) / 1024)
    bench.show(memory)
