"""A schema of the published function adopted, unadopted and adopted again, under eight writers."""

import pathlib
import tempfile
import time

from figures import Table
from server import at_once, program, value


def prepare(session):
    session.execute("CREATE SCHEMA insta5; CREATE SEQUENCE insta5.table_id_seq")
    session.execute(pathlib.Path("demo/published.sql").read_text())
    session.execute(
        "CREATE TABLE insta5.photos ("
        "id bigint PRIMARY KEY DEFAULT insta5.published_next_id(), user_id bigint NOT NULL)"
    )
    session.execute("SELECT insta_ids.init(2000)")


def adoption(bench):
    """How long the calls take, and how long the inserts around them are kept waiting."""
    session = bench.database("adoption", prepare)
    pause = bench.size(5, 2)
    table = Table("adoption", "A schema of the published function switched under 8 writers", "ms")
    with tempfile.TemporaryDirectory() as directory:
        script = pathlib.Path(directory, "script")
        script.write_text("INSERT INTO insta5.photos (user_id) VALUES (31341);\n")
        options = ["-n", "-c", 8, "-j", 2, "-T", 4 * pause, "-l", "-M", "prepared", "-f", script, "adoption"]
        switches = []

        def switch():
            for name, call in (
                ("adopt", "adopt('insta5', 5)"),
                ("unadopt", "unadopt('insta5')"),
                ("adopt, again", "adopt('insta5', 5)"),
            ):
                time.sleep(pause)
                began = time.time()
                session.execute(f"SELECT insta_ids.{call}")
                switches.append((began, time.time()))
                table.add(name, (switches[-1][1] - began) * 1000)

        at_once([lambda: program("pgbench", *options, cwd=directory), switch])
        written = [
            line.split()
            for log in pathlib.Path(directory).glob("pgbench_log.*")
            for line in log.read_text().splitlines()
        ]
    failed = sum(1 for fields in written if not fields[2].isdigit())
    if failed:
        raise RuntimeError(f"{failed} inserts failed")
    waits = [(int(fields[4]) + int(fields[5]) / 1e6, int(fields[2]) / 1000) for fields in written]
    around = [ms for ended, ms in waits if any(began <= ended <= end + 0.5 for began, end in switches)]
    table.add("the longest insert around a switch", max(around))
    table.add(
        "the longest insert at other times",
        max(ms for ended, ms in waits if not any(began <= ended <= end + 0.5 for began, end in switches)),
    )
    ids = value(session, "SELECT count(DISTINCT id) FROM insta5.photos")
    table.notes.append(f"{len(waits):,} inserts, none failed, {ids:,} different ids.")
    if ids != len(waits):
        raise RuntimeError(table.notes[-1])
    bench.show(table)
