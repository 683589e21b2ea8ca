"""demo/client.py, where a server refuses, changes its map, ends sessions or is not there."""

import copy
import pathlib
import sys
import threading
import time

import psycopg

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "demo"))
sys.dont_write_bytecode = True
from client import Fleet, Map, OutcomeUnknown  # noqa: E402

dsn = sys.argv[1]
server = psycopg.connect(dsn, autocommit=True)
INSERT = "INSERT INTO {}.photos DEFAULT VALUES RETURNING id"


def fails(kind, act):
    try:
        act()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def later(statement):
    threading.Timer(0.3, lambda: server.execute(statement)).start()


def await_one(query):
    began = time.monotonic()
    while not server.execute(query).fetchall():
        assert time.monotonic() - began < 60, query


# No server answers; or one of the two.
fails(psycopg.OperationalError, lambda: Fleet(["host=/nowhere"], "app"))
server.execute("CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA insta2 TO app")
server.execute("GRANT SELECT, INSERT ON insta2.photos TO app; GRANT USAGE ON SEQUENCE insta2.table_id_seq TO app")
fleet = Fleet(["host=/nowhere", dsn], "app")
[(photo,)] = fleet.run(2, INSERT)
assert fleet.map.shard_of_id(photo) == 2
assert [fleet.map.shard_of(key) for key in (0, 66, -5)] == [0, 2, 59]

# A change of the map is heard of before a next statement, as soon as the server has told it.
known = fleet.map.version
server.execute("SELECT insta_ids.add_node('z', 'host=/nowhere')")
began = time.monotonic()
while fleet.map.version == known and time.monotonic() - began < 10:
    fleet.run(2, "SELECT 1 FROM {}.photos")
assert fleet.map.version == known + 1, fleet.map.version

# Errors of the statement itself are the caller's, at once.
began = time.monotonic()
fails(psycopg.errors.UndefinedTable, lambda: fleet.run(2, "SELECT 1 FROM {}.nothing"))
fails(psycopg.errors.CheckViolation, lambda: fleet.run(2, "INSERT INTO {}.photos (id) VALUES (1)"))
fails(LookupError, lambda: fleet.map.node_of(64))
assert time.monotonic() - began < 10

# A session that ends while it has nothing to do is made anew; one that has a statement leaves its outcome open.
end = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
await_one("SELECT count(*) FROM (" + end + ") ended HAVING count(*) = 0")
time.sleep(0.2)
assert fleet.run(2, "SELECT count(*) FROM {}.photos") == [(1,)]
sleeping = "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'SELECT pg_sleep%'"
threading.Thread(target=lambda: (await_one(sleeping), server.execute(end))).start()
fails(OutcomeUnknown, lambda: fleet.run(2, "SELECT pg_sleep(60) FROM {}.photos"))
assert fleet.run(2, "SELECT count(*) FROM {}.photos") == [(1,)]

# A fence is waited for, as long as there is patience.
server.execute("SELECT insta_ids.fence(2)")
later("SELECT insta_ids.unfence(2)")
fleet.run(2, INSERT)
server.execute("SELECT insta_ids.fence(2)")
fleet.patience = 1
fails(psycopg.errors.ReadOnlySqlTransaction, lambda: fleet.run(2, INSERT))
server.execute("SELECT insta_ids.unfence(2)")

# A map that this client would not understand as the servers do.
[(answer,)] = server.execute("SELECT insta_ids.shard_map()")
for function in ("shard_of", "id_shard"):
    other = copy.deepcopy(answer)
    other["known_answers"][function][0]["shard"] = 63
    assert function in str(fails(ValueError, lambda: Map(other)))
fails(ValueError, lambda: Map({**answer, "format": 2}))
print("ok")
