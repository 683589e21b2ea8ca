"""A client of many servers: it sends each statement to the server that has the shard, also when shards move.

    fleet = Fleet(["host=10.0.0.1 dbname=app", "host=10.0.0.2 dbname=app"], user="app")
    insert = "INSERT INTO {}.photos (user_id) VALUES (%s) RETURNING id"
    [(photo,)] = fleet.run(fleet.map.shard_of(31341), insert, [31341])
    select = "SELECT user_id FROM {}.photos WHERE id = %s"
    [(user,)] = fleet.run(fleet.map.shard_of_id(photo), select, [photo])

Copy it, and make of it what your application needs. It wants psycopg 3.1 or later.
"""

import re
import time

import psycopg
from psycopg import errors, sql

# What is read or written by its name where the shard has left.
GONE = (errors.UndefinedTable, errors.InvalidSchemaName)


class OutcomeUnknown(Exception):
    """The server was lost while it had the statement, and has not said whether it was committed.

    It is not tried again, as it might be done twice. Look for what it was to do, or repeat it where that is harmless.
    """


def check(function, of, here, there):
    if here != there:
        raise ValueError(f"{function}({of}) is {there} on the servers, and {here} here")


class Map:
    """What insta_ids.shard_map() returned on some servers, if this client understands it as the servers do.

    A server may not have heard yet what has changed on another one. So the newest that any of them has counts, of each shard and
    of each node.
    """

    def __init__(self, *answers):
        for answer in answers:
            if answer["format"] != 1:
                raise ValueError(f"the map is of format {answer['format']}, and this client reads 1")
        self.version = max(answer["version"] for answer in answers)
        any_answer = answers[0]
        self.shards = any_answer["shards"]
        self.prefix = any_answer["prefix"]
        nodes = [node for answer in answers for node in answer["nodes"] + answer["dropped_nodes"]]
        newest = {node["node"]: node for node in sorted(nodes, key=lambda node: node["version"])}
        self.addresses = {name: node["dsn"] for name, node in newest.items() if "dsn" in node}
        self.bits = {field: int(width) for field, width in re.findall(r"(shard|seq):(\d+)", any_answer["layout"])}
        self.holders = [None] * self.shards
        ranges = [assigned for answer in answers for assigned in answer["ranges"]]
        for first, last, node, _ in sorted(ranges, key=lambda assigned: assigned[3]):
            self.holders[first : last + 1] = [node] * (last + 1 - first)
        known = any_answer["known_answers"]
        for one in known["shard_of"]:
            if one["type"] == "bigint":
                check("shard_of", one["key"], self.shard_of(int(one["key"])), one["shard"])
        for one in known["id_shard"]:
            check("id_shard", one["id"], self.shard_of_id(int(one["id"])), one["shard"])

    def shard_of(self, key):
        """The shard of what has this bigint as its key. For negative ones, too: % rounds down here."""
        return key % self.shards

    def shard_of_id(self, id):
        """The shard that an id of Instagram's layout was made in: it is above the sequence."""
        return id >> self.bits["seq"] & (1 << self.bits["shard"]) - 1

    def node_of(self, shard):
        """The name of the node that has a shard."""
        if not 0 <= shard < self.shards or self.holders[shard] is None:
            raise LookupError(f"the map has shard {shard} on no node")
        return self.holders[shard]

    def address_of(self, shard):
        """The connection string of that node's server."""
        return self.addresses[self.node_of(shard)]


class Fleet:
    """The servers, for one thread. The map is a hint: a server refuses what it has not, and then it is read again."""

    def __init__(self, seeds, user, patience=30, **login):
        """Some of the servers, the application's role, the seconds to try a statement for, and other parameters of its connections.

        The map's connection strings name the role of those who move shards, so its user is replaced.
        """
        self.seeds = list(seeds)
        self.patience = patience
        self.login = {"connect_timeout": 2, "user": user, **login}
        self.connections = {}
        # What each server has answered last.
        self.answers = {}
        self.map = None
        self.refresh()

    def run(self, shard, statement, parameters=()):
        """Runs one statement, in a transaction of its own, where the shard is; {} is its schema. Returns the rows.

        It tries again while the shard is on its way or its server cannot be reached: then nothing was done.
        """
        statement = sql.SQL(statement).format(sql.Identifier(f"{self.map.prefix}{shard}"))
        deadline = time.monotonic() + self.patience
        pause = 0.005
        while True:
            self._listen()
            address = self.map.address_of(shard)
            try:
                connection = self._connection(address)
            except (psycopg.OperationalError, errors.ReadOnlySqlTransaction) as error:
                refusal = error
            else:
                try:
                    cursor = connection.execute(statement, parameters)
                    return cursor.fetchall() if cursor.description else []
                except (errors.ReadOnlySqlTransaction, *GONE) as error:
                    refusal = error
                except psycopg.OperationalError as error:
                    if connection.closed:
                        raise OutcomeUnknown(f"lost the server of shard {shard}") from error
                    raise
            self.refresh()
            # If the map goes on to have the shard there, there just is no such table.
            if time.monotonic() > deadline or isinstance(refusal, GONE) and self.map.address_of(shard) == address:
                raise refusal
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)

    def refresh(self):
        """Reads the map on all servers that answer."""
        self.is_old = False
        for address in {*self.seeds, *(self.map.addresses.values() if self.map else ())}:
            try:
                [(self.answers[address],)] = self._connection(address).execute("SELECT insta_ids.shard_map()")
            except psycopg.Error as error:
                silence = error
        if not self.answers:
            raise silence
        self.map = Map(*self.answers.values())

    def close(self):
        for connection in self.connections.values():
            connection.close()

    def _connection(self, address):
        if address not in self.connections:
            connection = psycopg.connect(address, autocommit=True, **self.login)
            # Called when word of a change comes with the answer to a statement.
            connection.add_notify_handler(self._heard)
            connection.execute("LISTEN insta_ids_map")
            self.connections[address] = connection
        return self.connections[address]

    def _heard(self, _):
        self.is_old = True

    def _listen(self):
        """Reads the map if a server has said that it changed, waiting for nothing. Forgets servers that are gone."""
        for address, connection in list(self.connections.items()):
            try:
                # By libpq's calls, as psycopg's notifies() waits. Twice: who stops says so before it is gone.
                connection.pgconn.consume_input()
                connection.pgconn.consume_input()
                while connection.pgconn.notifies():
                    self.is_old = True
            except psycopg.OperationalError:
                del self.connections[address]
        if self.is_old:
            self.refresh()
