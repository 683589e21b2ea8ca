"""Reads the shard map as a client does: it is what its schema says, and its known answers are what is computed here."""

import json
import re
import sys

import jsonschema
import psycopg

dsn, schema = sys.argv[1:]
with psycopg.connect(dsn) as connection:
    shard_map = connection.execute("SELECT insta_ids.shard_map()").fetchone()[0]
jsonschema.validate(shard_map, json.load(open(schema)))

answers = shard_map["known_answers"]
for answer in answers["shard_of"]:
    if answer["type"] == "bigint":
        assert int(answer["key"]) % shard_map["shards"] == answer["shard"], answer
bits = {field: int(width) for field, width in re.findall(r"(shard|seq):(\d+)", shard_map["layout"])}
for answer in answers["id_shard"]:
    # Instagram's layout: the shard above the sequence.
    assert int(answer["id"]) >> bits["seq"] & (1 << bits["shard"]) - 1 == answer["shard"], answer
last = -1
for first, end, node, _ in shard_map["ranges"]:
    assert last < first <= end < shard_map["shards"], shard_map["ranges"]
    assert node in [known["node"] for known in shard_map["nodes"]]
    last = end
print("ok")
