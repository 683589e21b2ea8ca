"""The server under the bench, and its sessions. PGHOST, PGUSER and PG_CONFIG say which it is (scripts/bench)."""

import contextlib
import os
import pathlib
import subprocess
import threading

import psycopg

BIN = subprocess.run([os.environ["PG_CONFIG"], "--bindir"], capture_output=True, text=True, check=True).stdout.strip()

# Where the server and the bench can both write.
DIRECTORY = pathlib.Path(os.environ["PGHOST"])


def connect(database):
    """A session, which commits each statement."""
    settings = ("client_min_messages=warning", "jit=off", "max_parallel_workers_per_gather=0", "timezone=UTC")
    return psycopg.connect(dbname=database, autocommit=True, options=" ".join(f"-c {one}" for one in settings))


@contextlib.contextmanager
def connections(database, count):
    sessions = [connect(database) for _ in range(count)]
    yield sessions
    for session in sessions:
        session.close()


def value(session, query, *arguments):
    """The one value of a query."""
    return session.execute(query, arguments or None).fetchone()[0]


def published(session):
    """The published function and its sequence, in a schema of their own, and the shard 5 beside it."""
    session.execute("CREATE SCHEMA published; CREATE SEQUENCE published.table_id_seq")
    session.execute(pathlib.Path("demo/published.sql").read_text().replace("insta5.", "published."))
    session.execute("SELECT insta_ids.init(8192)")
    session.execute("CALL insta_ids.create_shards(5, 5)")


def run(*command, **options):
    """Runs a program to its end, and returns what it printed."""
    command = [str(word) for word in command]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def program(name, *arguments, **options):
    """The same of one of the server's programs."""
    return run(f"{BIN}/{name}", *arguments, **options)


def psql(database, *arguments, **options):
    return program("psql", "-X", "-q", "-At", "-v", "ON_ERROR_STOP=1", "-d", database, *arguments, **options)


def at_once(calls):
    """Makes all the calls, each in a thread, and returns when the last has ended."""
    failures = []

    def one(call):
        try:
            call()
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=one, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def own_kb(session):
    """The memory that the session's process has of its own, in KB."""
    status = pathlib.Path(f"/proc/{session.info.backend_pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])


def about(session):
    """What the figures are of: versions, machine and settings."""
    settings = ["shared_buffers", "max_wal_size", "fsync", "synchronous_commit", "jit", "autovacuum"]
    return {
        "postgresql": value(session, "SELECT current_setting('server_version')"),
        "insta_ids": value(session, "SELECT default_version FROM pg_available_extensions WHERE name = 'insta_ids'"),
        "cores": os.cpu_count(),
        "settings": {name: value(session, "SELECT current_setting(%s)", name) for name in settings},
    }
