"""Ids and layouts in the binary format, through psycopg 3. Called with the server's socket directory."""

import struct
import sys

import psycopg
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg.types import TypeInfo


class Layout:
    """epoch (Unix ms), unit (ms), bits of time, shard and seq, whether seq stands above shard"""

    wire = struct.Struct(">qIBBB?")

    def __init__(self, *fields):
        self.fields = fields


class LayoutDumper(Dumper):
    format = Format.BINARY

    def dump(self, layout):
        return Layout.wire.pack(*layout.fields)


class LayoutLoader(Loader):
    format = Format.BINARY

    def load(self, data):
        return Layout(*Layout.wire.unpack(bytes(data)))


with psycopg.connect(host=sys.argv[1], user="postgres", dbname="postgres", autocommit=True) as connection:
    info = TypeInfo.fetch(connection, "id_layout")
    info.register(connection)
    LayoutDumper.oid = info.oid
    connection.adapters.register_dumper(Layout, LayoutDumper)
    connection.adapters.register_loader(info.oid, LayoutLoader)
    cursor = connection.cursor(binary=True)

    twitter = Layout(1288834974657, 1, 41, 10, 12, False)
    sonyflake = Layout(1409529600000, 10, 39, 16, 8, True)
    for name, layout in (("twitter", twitter), ("sonyflake", sonyflake)):
        row = cursor.execute("SELECT %s::text::id_layout, %s = %s::text::id_layout", (name, layout, name)).fetchone()
        assert row[0].fields == layout.fields and row[1], (name, row)

    cursor.execute("CREATE TEMPORARY SEQUENCE s")
    row = cursor.execute(
        "SELECT next_id(7, 's', %s), id_time(1233161576649121792, %s), id_json(1233161576649121792, %s)",
        (twitter, twitter, twitter),
    ).fetchone()
    assert row[0] >> 12 & 1023 == 7, row
    assert row[1].timestamp() == 1582843605.564, row
    assert row[2] == {"at": "2020-02-27T22:46:45.564Z", "id": "1233161576649121792", "seq": 0, "shard": 334}, row

    for wrong in (Layout(0, 0, 41, 13, 10, False), Layout(0, 1, 60, 13, 10, False), Layout(2**47, 1, 41, 13, 10, False)):
        try:
            cursor.execute("SELECT %s", (wrong,))
        except psycopg.errors.InvalidBinaryRepresentation:
            continue
        raise AssertionError(f"{wrong.fields} is no layout")
