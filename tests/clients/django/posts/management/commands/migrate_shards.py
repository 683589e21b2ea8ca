from io import StringIO

from django.core.management import BaseCommand, call_command
from django.db import connections
from django.db.migrations.loader import MigrationLoader

from shards import SHARDED


class Command(BaseCommand):
    help = "Gives all shards the migrations of the apps that are in shards"

    def handle(self, **options):
        connection = connections["shards"]
        graph = MigrationLoader(connection).graph
        leaves = [leaf for leaf in graph.leaf_nodes() if leaf[0] in SHARDED]
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM insta_ids_internal.migration")
            added = {name for (name,) in cursor}
            for app, name in dict.fromkeys(node for leaf in leaves for node in graph.forwards_plan(leaf)):
                if app in SHARDED and f"{app}.{name}" not in added:
                    sql = StringIO()
                    call_command("sqlmigrate", app, name, database="shards", no_color=True, stdout=sql)
                    # Each shard gets it in a transaction anyway.
                    sql = sql.getvalue().removeprefix("BEGIN;\n").removesuffix("COMMIT;\n")
                    cursor.execute("SELECT insta_ids.add_migration(%s, %s)", [f"{app}.{name}", sql])
            cursor.execute("CALL insta_ids.migrate()")
