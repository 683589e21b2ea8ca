"""Where the tables of posts are: in each shard."""

from contextlib import contextmanager

from django.db import connections, transaction

SHARDED = {"posts"}


class Router:
    def db_for_read(self, model, **hints):
        return "shards" if model._meta.app_label in SHARDED else "default"

    db_for_write = db_for_read

    def allow_relation(self, one, other, **hints):
        return (one._meta.app_label in SHARDED) == (other._meta.app_label in SHARDED)

    def allow_migrate(self, db, app_label, **hints):
        return (app_label in SHARDED) == (db == "shards")


@contextmanager
def on_shard(shard):
    """One transaction, in which the tables are those of this shard"""
    with transaction.atomic(using="shards", durable=True):
        with connections["shards"].cursor() as cursor:
            path = "SELECT set_config('search_path', insta_ids.schema_of(%s) || ', public', true)"
            cursor.execute(path, [shard])
        yield


def shard_of(key):
    with connections["shards"].cursor() as cursor:
        cursor.execute("SELECT insta_ids.shard_of(%s)", [key])
        return cursor.fetchone()[0]
