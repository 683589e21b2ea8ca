"""What it costs to read ids: to decode them, to find those of a time, and to mask them."""

from figures import Table
from server import value


def prepare(session):
    """A million rows of one year, and their index."""
    session.execute("""
        CREATE TABLE photos AS
        SELECT make_id('2026-01-01'::timestamptz + n * interval '31 s', n % 8192, n % 1024) AS id
        FROM generate_series(0, 999999) n
    """)
    session.execute("ALTER TABLE photos ADD PRIMARY KEY (id)")
    session.execute("VACUUM (FREEZE, ANALYZE) photos")


def decoding(bench):
    """The time and the shard of ten million ids, beside what SQL can do by itself."""
    session = bench.database("reading", prepare)
    times = bench.size(10, 1)
    table = Table("decoding", f"{times} million ids decoded, the scan of the table subtracted", "s")
    cases = [
        ("`(id >> 10) & 8191`", "(id >> 10) & 8191", None),
        ("`id_shard(id)`", "id_shard(id)", "`(id >> 10) & 8191`"),
        ("`id_time(id)`", "id_time(id)", "`(id >> 10) & 8191`"),
        (
            "`to_timestamp(((id >> 23) + 1314220021721) / 1000.0)`",
            "to_timestamp(((id >> 23) + 1314220021721) / 1000.0)",
            "`id_time(id)`",
        ),
    ]
    scan = "SELECT count({}) FROM generate_series(1, %d), photos" % times
    for _ in bench.rounds(9, 2):
        alone = bench.took(session, scan.format("id"))
        for name, expression, of in cases:
            table.add(name, bench.took(session, scan.format(expression)) - alone, of)
    bench.show(table)


def ranges(bench):
    """The ids of one day, by bounds written out and by functions of time."""
    session = bench.database("reading", prepare)
    table = Table("ranges", "The rows of one day among a million", "ms")
    since, until = "'2026-05-01 00:00+00'", "'2026-05-02 00:00+00'"
    first, end = (value(session, f"SELECT id_min({at})") for at in (since, until))
    literal = f"id >= {first} AND id < {end}"
    cases = {
        "bounds written out": literal,
        "`id_min`": f"id >= id_min({since}) AND id < id_min({until})",
        "`id_between`": f"id_between(id, {since}, {until})",
    }
    plans = {
        name: [
            line for (line,) in session.execute(f"EXPLAIN (COSTS OFF) SELECT count(*) FROM photos WHERE {condition}")
        ]
        for name, condition in cases.items()
    }
    times = 200
    for _ in bench.rounds(9, 3):
        for name, condition in cases.items():
            took = bench.took(session, f"SELECT count(*) FROM photos WHERE {condition}", times)
            table.add(name, took / times * 1000, None if condition == literal else "bounds written out")
    same = len({tuple(plan) for plan in plans.values()}) == 1
    table.notes.append("All have the same plan:" if same else "The plans differ:")
    table.notes += [
        "```\n" + "\n".join(plan) + "\n```" for plan in {tuple(plan): plan for plan in plans.values()}.values()
    ]
    bench.show(table)


def masking(bench):
    """A text of each id, by a key that is written out and by one in a table, beside a hash of the id."""
    session = bench.database("masking", keys)
    rows = bench.size(200_000, 10_000)
    table = Table("masking", "A masked id", "us")
    cases = [
        ("`md5(id::text)`", "md5(id::text)", None),
        ("`id_shortcode(id)`", "id_shortcode(id)", "`md5(id::text)`"),
        ("`id_mask(id, key)`", "id_mask(id, key)", "`md5(id::text)`"),
        ("`id_unmask(text, key)`", "id_unmask(text, key)", "`id_mask(id, key)`"),
        ("`public_id(id)`, which reads the key from a table", "public_id(id)", "`id_mask(id, key)`"),
    ]
    scan = "SELECT count({}) FROM masked, (SELECT key FROM mask_key OFFSET 0) k"
    session.execute("""
        CREATE TABLE masked AS SELECT id, id_mask(id, key) AS text
        FROM generate_series(1, %d) id, mask_key
    """ % rows)
    session.execute("VACUUM (FREEZE, ANALYZE) masked")
    for _ in bench.rounds(9, 2):
        alone = bench.took(session, scan.format("id"))
        for name, expression, of in cases:
            table.add(name, (bench.took(session, scan.format(expression)) - alone) / rows * 1e6, of)
    bench.show(table)


def keys(session):
    """A key in a table, and the function that masks by it, as docs/masking.md has them."""
    session.execute("CREATE TABLE mask_key (version integer PRIMARY KEY, key bytea NOT NULL)")
    session.execute("INSERT INTO mask_key VALUES (1, sha256('bench'))")
    session.execute("""
        CREATE FUNCTION public_id(id bigint) RETURNS text STABLE STRICT PARALLEL SAFE SECURITY DEFINER
        BEGIN ATOMIC
            SELECT version || '.' || id_mask(id, key) FROM mask_key ORDER BY version DESC LIMIT 1;
        END
    """)
