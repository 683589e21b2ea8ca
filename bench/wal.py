"""What minting writes to WAL."""

import time

from figures import Table
from server import program, value


def wal(bench):
    """Bytes, for ids asked for slowly, often, and at full speed."""
    session = bench.database("wal")
    session.execute("CREATE SEQUENCE s")
    seconds = bench.size(5, 2)
    table = Table("wal", "Written to WAL by one session", "bytes/s")
    # The first change of a page after a checkpoint is written with the whole page.
    session.execute("CHECKPOINT")
    session.execute("SELECT next_id(5, 's')")
    ways = {"`nextval`": "nextval('s')", "`next_id`": "next_id(5, 's')"}
    for _ in bench.rounds(2, 1):
        for rate in (1, 1000, None):
            for way, expression in ways.items():
                before = written(session)
                began = time.monotonic()
                if rate:
                    script = f"SELECT {expression};\n"
                    program(
                        "pgbench", "-n", "-c", 1, "-T", seconds, "-R", rate, "-f", "/dev/stdin", "wal", input=script
                    )
                else:
                    session.execute(f"SELECT count({expression}) FROM generate_series(1, {seconds * 1_000_000})")
                # By the same number of ids a second, so that the two can be compared.
                passed = time.monotonic() - began if rate else seconds
                name = f"{way}, {rate or 1_000_000:,} a second"
                table.add(name, (written(session) - before) / passed)
    bench.show(table)


def written(session):
    return float(value(session, "SELECT pg_current_wal_insert_lsn() - '0/0'"))
