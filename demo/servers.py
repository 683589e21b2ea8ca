"""Four servers, six clients that write, shards that move, a server that dies: what was written is there, once.

Run by scripts/demo-servers or packaging/compose.yaml, which have started the servers. Clients are told nothing: they are
demo/client.py.
"""

import collections
import concurrent.futures
import contextlib
import multiprocessing
import os
import pathlib
import random
import sys
import threading
import time

import psycopg

import drawing
from client import Fleet, OutcomeUnknown

SEED = os.environ.get("SEED") or "1"
DURATION = float(os.environ.get("DURATION") or 24)
DRAWING = pathlib.Path(os.environ["RESULTS"], "servers.svg")

SHARDS = 64
# The shards that each server begins with, and the clients that write to them. The server d is new and empty.
HOLDINGS = {"a": range(0, 32), "b": range(32, 53), "c": range(53, 64)}
CLIENTS = {"a": 3, "b": 2, "c": 1}

MIGRATION = """
    CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL);
    DO $$ BEGIN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO app', current_schema);
        EXECUTE format('GRANT INSERT, SELECT ON %I.photos TO app', current_schema);
        EXECUTE format('GRANT USAGE ON SEQUENCE %I.table_id_seq TO app', current_schema);
    END $$
"""
# SERVERS is what hosts begin with: a directory of sockets, or nothing where each server has a name of its own.
ADDRESSES = {
    server: f"host={os.environ['SERVERS']}{server} user=postgres dbname=postgres"
    for server in ("a", "b", "c", "d", "standby")
}
SERVER_AT = {address: server for server, address in ADDRESSES.items()}

# Those that are there in the end.
REMAINING = ("a", "standby", "c", "d")

# Clients are copies of this process, and so have its event. From Python 3.14 on, that is not the default.
processes = multiprocessing.get_context("fork")
stop = processes.Event()

# An id that a client was told of: when, by which server, and how long it had been without one.
Written = collections.namedtuple("Written", "at id shard server pause")
# What insta_ids.fleet() said of a server: when, and how many ids it gave each second.
Load = collections.namedtuple("Load", "at server ids_per_s")


def server(name):
    return psycopg.connect(ADDRESSES[name], autocommit=True)


def value(session, query):
    """The one value of a query."""
    return session.execute(query).fetchone()[0]


def prepare():
    """64 shards on three of four servers that all have the map; what b commits is on its standby, too."""
    for name in ("a", "b", "c", "d"):
        with server(name) as session:
            session.execute("CREATE EXTENSION insta_ids")
            session.execute("CREATE ROLE app LOGIN")
    with server("a") as a:
        a.execute("SELECT insta_ids.init(%s)", [SHARDS])
        for node in ("a", "b", "c", "d"):
            a.execute("SELECT insta_ids.add_node(%s::text, %s)", [node, ADDRESSES[node]])
        for node, shards in HOLDINGS.items():
            a.execute("SELECT insta_ids.assign(%s, %s, %s::text)", [shards[0], shards[-1], node])
        shard_map = value(a, "SELECT insta_ids.shard_map()::text")
    for name in ("b", "c", "d"):
        with server(name) as session:
            session.execute("SELECT insta_ids.apply_map(%s::text::jsonb)", [shard_map])
    with server("a") as a:
        a.execute("SELECT insta_ids.add_migration('0001', %s)", [MIGRATION])
        a.execute("CALL insta_ids.migrate_fleet()")
    with server("b") as b:
        # Not "*", as a move's subscription would do for a standby. What was copied before is without the setting.
        b.execute("ALTER SYSTEM SET synchronous_standby_names = 'servers_standby'")
        b.execute("SELECT pg_reload_conf()")
        while not value(b, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"):
            time.sleep(0.02)
    for node, shards in HOLDINGS.items():
        with server(node) as session:
            session.execute(f"CALL insta_ids.create_shards({shards[0]}, {shards[-1]})")


def write(node, number):
    """A client, whose users' shards begin on one node: what it was told of, and how often it does not know."""
    chance = random.Random(f"{SEED} {node} {number}")
    fleet = Fleet([ADDRESSES[node] for node in HOLDINGS], "app")
    written, unknown = [], 0
    last = time.monotonic()
    while not stop.is_set():
        user = chance.randrange(-(2**63), 2**63)
        shard = fleet.map.shard_of(user)
        if shard not in HOLDINGS[node]:
            continue
        try:
            [(id,)] = fleet.run(shard, "INSERT INTO {}.photos (user_id) VALUES (%s) RETURNING id", [user])
        except OutcomeUnknown:
            unknown += 1
            continue
        now = time.monotonic()
        written.append(Written(now, id, shard, SERVER_AT[fleet.map.address_of(shard)], now - last))
        last = now
        time.sleep(chance.uniform(0, 0.01))
    return written, unknown


def rebalance(times):
    """One statement, on any server: shards go to d, until all servers have as many."""
    times["rebalance"] = time.monotonic()
    with server("a") as a:
        a.execute("CALL insta_ids.rebalance('shards', at_once => 2)")
    times["rebalanced"] = time.monotonic()


def drain(times):
    """One statement: all shards leave c."""
    times["drain"] = time.monotonic()
    with server("a") as a:
        a.execute("CALL insta_ids.drain_node('c')")
    times["drained"] = time.monotonic()


def kill(name):
    """Kills all processes of a server at once, by SQL: the server can be in a container of its own."""
    with server(name) as session:
        others = value(session, "SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        # The session loses its server.
        with contextlib.suppress(psycopg.Error):
            session.execute(f"COPY (SELECT) TO PROGRAM 'kill -KILL $(head -n 1 postmaster.pid) {others}'")
    with contextlib.suppress(psycopg.OperationalError):
        server(name).close()
        sys.exit(f"{name} was to be killed, and answers")


def fail_over(times):
    """The server b is killed. Its standby becomes b, and the map says where it is."""
    kill("b")
    times["killed"] = time.monotonic()
    # Until somebody notices.
    time.sleep(DURATION / 24)
    with server("standby") as standby:
        standby.execute("SELECT pg_promote()")
    times["promoted"] = time.monotonic()
    with server("standby") as b:
        b.execute("SELECT insta_ids.add_node('b', %s)", [ADDRESSES["standby"]])
        shard_map = value(b, "SELECT insta_ids.shard_map()::text")
    for name in ("a", "c", "d"):
        with server(name) as session:
            session.execute("SELECT insta_ids.apply_map(%s::text::jsonb)", [shard_map])
    times["told"] = time.monotonic()


def watch(loads):
    """Asks the fleet for its load, again and again."""
    with server("a") as a:
        while not stop.is_set():
            for name, rate in a.execute("SELECT node, ids_per_s FROM insta_ids.fleet('500 ms')").fetchall():
                loads.append(Load(time.monotonic(), name, rate))


def act():
    """What happens while clients write, and when; and the load meanwhile."""
    times, loads = {"began": time.monotonic()}, []
    watcher = threading.Thread(target=watch, args=[loads])
    watcher.start()
    for happens in (rebalance, fail_over, drain):
        time.sleep(DURATION / 4)
        happens(times)
    time.sleep(DURATION / 4)
    times["ended"] = time.monotonic()
    stop.set()
    watcher.join()
    return times, loads


def found(name):
    """Every row in the shards of a server: the server, its shard, id and user."""
    with server(name) as session:
        for (shard,) in session.execute("SELECT shard FROM insta_ids_internal.shard").fetchall():
            for id, user in session.execute(f"SELECT id, user_id FROM insta{shard}.photos"):
                yield name, shard, id, user


def ms(times, since, until):
    return round((times[until] - times[since]) * 1000)


def waited(written, times):
    """The longest that a client was without an id, in ms: during the moves, the failover, and at other times."""
    phases = {
        "the rebalance": ("rebalance", "rebalanced"),
        "the failover": ("killed", "told"),
        "the drain": ("drain", "drained"),
    }
    longest = dict.fromkeys([*phases, "nothing of these"], 0)
    for one in written:
        phase = "nothing of these"
        for name, (since, until) in phases.items():
            if one.at >= times[since] and one.at - one.pause <= times[until]:
                phase = name
        longest[phase] = max(longest[phase], round(one.pause * 1000))
    return longest


def judge(written, unknown):
    """What there is, and what must not be."""
    shards = Fleet([ADDRESSES["a"]], "app").map
    there = [row for name in REMAINING for row in found(name)]
    ids = {id for _, _, id, _ in there}
    told = {one.id for one in written}
    untold = len(ids - told)
    misplaced = [
        id
        for name, shard, id, user in there
        if not shards.shard_of_id(id) == shards.shard_of(user) == shard or shards.address_of(shard) != ADDRESSES[name]
    ]
    findings = 0
    for name in REMAINING:
        with server(name) as session:
            findings += value(session, "SELECT count(*) FROM insta_ids.check()")
    figures = {
        "rows that clients were told of": len(written),
        "rows found": len(there),
        "rows found that no client was told of": untold,
        "inserts whose outcome is unknown": unknown,
    }
    wrong = {
        "rows lost": len(told - ids),
        "ids twice": len(there) - len(ids) + len(written) - len(told),
        "inserts done twice": len(there) - len({user for _, _, _, user in there}),
        "rows that nobody inserted": max(0, untold - unknown),
        "rows in another shard or on another server than theirs": len(misplaced),
        "findings of insta_ids.check()": findings,
    }
    return figures, wrong


def draw(written, loads, times):
    """Who had what, when, and how much each had to do."""
    names = {"a": "a", "b": "b", "c": "c", "d": "d", "standby": "b, its standby"}
    marks = [
        (times["rebalance"], "CALL insta_ids.rebalance()"),
        (times["rebalanced"], f"done after {ms(times, 'rebalance', 'rebalanced') / 1000:.1f} s"),
        (times["killed"], "b is killed"),
        (times["told"], f"the map has its standby, {ms(times, 'killed', 'told')} ms later"),
        (times["drain"], "CALL insta_ids.drain_node('c')"),
        (times["drained"], f"done after {ms(times, 'drain', 'drained') / 1000:.1f} s"),
    ]
    lines = drawing.draw(written, loads, list(HOLDINGS.values()), names, marks, times["began"], times["ended"])
    DRAWING.parent.mkdir(exist_ok=True)
    DRAWING.write_text("\n".join(lines) + "\n")


def main():
    prepare()
    with concurrent.futures.ProcessPoolExecutor(sum(CLIENTS.values()), processes) as pool:
        clients = [pool.submit(write, node, number) for node, count in CLIENTS.items() for number in range(count)]
        try:
            times, loads = act()
        finally:
            stop.set()
        written = [one for client in clients for one in client.result()[0]]
        unknown = sum(client.result()[1] for client in clients)
    draw(written, loads, times)
    figures, wrong = judge(written, unknown)
    figures["ms that the rebalance took"] = ms(times, "rebalance", "rebalanced")
    figures["ms that the drain took"] = ms(times, "drain", "drained")
    figures["ms from the kill to the map with the standby"] = ms(times, "killed", "told")
    for phase, longest in waited(written, times).items():
        figures[f"ms that a client waited at most, during {phase}"] = longest
    print(f"seed {SEED}, {DURATION:g} s; drawn in {DRAWING}")
    for what, number in (figures | wrong).items():
        print(f"{number:>8,} {what}")
    sys.exit(any(wrong.values()))


if __name__ == "__main__":
    main()
