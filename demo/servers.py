"""Three servers, six clients that write, shards that move, a server that dies: what was written is there, once.

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
import re
import sys
import time

import psycopg

import drawing
from client import Fleet, OutcomeUnknown

SEED = os.environ.get("SEED") or "1"
DURATION = float(os.environ.get("DURATION") or 24)
DRAWING = pathlib.Path(os.environ["RESULTS"], "servers.svg")

SHARDS = 64
HOLDINGS = {"a": range(0, 22), "b": range(22, 43), "c": range(43, 64)}
MOVED = range(14, 22)
CLIENTS_OF_EACH = 2

MIGRATION = "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL)"
# SERVERS is what hosts begin with: a directory of sockets, or nothing where each server has a name of its own.
ADDRESSES = {
    server: f"host={os.environ['SERVERS']}{server} user=postgres dbname=postgres"
    for server in ("a", "b", "c", "standby")
}
SERVER_AT = {address: server for server, address in ADDRESSES.items()}

# Those that are there in the end.
REMAINING = ("a", "standby", "c")

# Clients are copies of this process, and so have its event. From Python 3.14 on, that is not the default.
processes = multiprocessing.get_context("fork")
stop = processes.Event()

# An id that a client was told of: when, by which server, and how long it had been without one.
Written = collections.namedtuple("Written", "at id shard server pause")


def server(name):
    return psycopg.connect(ADDRESSES[name], autocommit=True)


def value(session, query):
    """The one value of a query."""
    return session.execute(query).fetchone()[0]


def prepare():
    """64 shards on three servers that all have the map; what b commits is on its standby, too."""
    with server("a") as a:
        a.execute("CREATE EXTENSION insta_ids")
        a.execute("SELECT insta_ids.init(%s)", [SHARDS])
        a.execute("SELECT insta_ids.add_migration('0001', %s)", [MIGRATION])
        for node, shards in HOLDINGS.items():
            a.execute("SELECT insta_ids.add_node(%s::text, %s)", [node, ADDRESSES[node]])
            a.execute("SELECT insta_ids.assign(%s, %s, %s::text)", [shards[0], shards[-1], node])
    for name in ("b", "c"):
        with server(name) as session:
            session.execute("CREATE EXTENSION insta_ids")
        tell_others("a", name)
        with server(name) as session:
            session.execute("SELECT insta_ids.add_migration('0001', %s)", [MIGRATION])
    with server("b") as b, server("c") as c:
        c.execute("CREATE EXTENSION dblink")
        # Not "*", as a move's subscription would do for a standby. What was copied before is without the setting.
        b.execute("ALTER SYSTEM SET synchronous_standby_names = 'servers_standby'")
        b.execute("SELECT pg_reload_conf()")
        while not value(b, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"):
            time.sleep(0.02)
    for node, shards in HOLDINGS.items():
        with server(node) as session:
            session.execute(f"CALL insta_ids.create_shards({shards[0]}, {shards[-1]})")


def tell_others(source, *others):
    """Servers do not tell each other of the map, but for the two of a move."""
    with server(source) as session:
        shard_map = value(session, "SELECT insta_ids.shard_map()::text")
    for other in others:
        with server(other) as session:
            session.execute("SELECT insta_ids.apply_map(%s::text::jsonb)", [shard_map])


def write(node, number):
    """A client, whose users' shards begin on one node: what it was told of, and how often it does not know."""
    chance = random.Random(f"{SEED} {node} {number}")
    fleet = Fleet([ADDRESSES[node] for node in HOLDINGS])
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


def move(times):
    """Eight shards go from a to c."""

    def noted(notice):
        if step := re.match("move_shards: (fenced|handed over)", notice.message_primary):
            times[step[1]] = time.monotonic()

    times["move"] = time.monotonic()
    with server("c") as c:
        c.add_notice_handler(noted)
        c.execute(f"CALL insta_ids.move_shards({MOVED[0]}, {MOVED[-1]}, 'a')")
    times["moved"] = time.monotonic()
    tell_others("c", "b")


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
    tell_others("standby", "a", "c")
    times["told"] = time.monotonic()


def act():
    """What happens while clients write, and when."""
    times = {"began": time.monotonic()}
    time.sleep(DURATION / 5)
    move(times)
    time.sleep(max(0, times["began"] + DURATION / 2 - time.monotonic()))
    fail_over(times)
    time.sleep(max(DURATION / 5, times["began"] + DURATION - time.monotonic()))
    times["ended"] = time.monotonic()
    return times


def found(name):
    """Every row in the shards of a server: the server, its shard, id and user."""
    with server(name) as session:
        for (shard,) in session.execute("SELECT shard FROM insta_ids_internal.shard").fetchall():
            for id, user in session.execute(f"SELECT id, user_id FROM insta{shard}.photos"):
                yield name, shard, id, user


def ms(times, since, until):
    return round((times[until] - times[since]) * 1000)


def waited(written, times):
    """The longest that a client was without an id, in ms: during the move, the failover, and at other times."""
    longest = {"move": 0, "failover": 0, "other": 0}
    for one in written:
        phase = "other"
        for name, since, until in (("move", "move", "moved"), ("failover", "killed", "told")):
            if one.at >= times[since] and one.at - one.pause <= times[until]:
                phase = name
        longest[phase] = max(longest[phase], round(one.pause * 1000))
    return longest


def judge(written, unknown):
    """What there is, and what must not be."""
    shards = Fleet([ADDRESSES["a"]]).map
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


def draw(written, times):
    """Who had what, when."""
    groups = [range(0, MOVED[0]), MOVED, HOLDINGS["b"], HOLDINGS["c"]]
    names = {"a": "a", "b": "b", "c": "c", "standby": "b, its standby"}
    marks = [
        (times["fenced"], f"{MOVED[0]} to {MOVED[-1]} fenced on a"),
        (times["handed over"], f"handed over to c, {ms(times, 'fenced', 'handed over')} ms later"),
        (times["killed"], "b is killed"),
        (times["promoted"], "its standby is promoted"),
        (times["told"], f"the map has it, {ms(times, 'killed', 'told')} ms after the kill"),
    ]
    lines = drawing.draw(written, groups, names, marks, times["began"], times["ended"])
    DRAWING.parent.mkdir(exist_ok=True)
    DRAWING.write_text("\n".join(lines) + "\n")


def main():
    prepare()
    with concurrent.futures.ProcessPoolExecutor(CLIENTS_OF_EACH * len(HOLDINGS), processes) as pool:
        clients = [pool.submit(write, node, number) for node in HOLDINGS for number in range(CLIENTS_OF_EACH)]
        try:
            times = act()
        finally:
            stop.set()
        written = [one for client in clients for one in client.result()[0]]
        unknown = sum(client.result()[1] for client in clients)
    draw(written, times)
    figures, wrong = judge(written, unknown)
    figures["ms from fence to hand-over"] = ms(times, "fenced", "handed over")
    figures["ms from the kill to the map with the standby"] = ms(times, "killed", "told")
    for phase, longest in waited(written, times).items():
        figures[f"ms that a client waited at most: {phase}"] = longest
    print(f"seed {SEED}, {DURATION:g} s; drawn in {DRAWING}")
    for what, number in (figures | wrong).items():
        print(f"{number:>8,} {what}")
    sys.exit(any(wrong.values()))


if __name__ == "__main__":
    main()
