"""Photos whose ids the server makes, by psycopg 3."""

import asyncio
import os

import psycopg

POOLED = bool(os.environ.get("POOLED"))


def connect(**options):
    # What psycopg prepares, when a statement comes again, an older PgBouncer does not find.
    options |= {"prepare_threshold": None} if POOLED else {}
    return psycopg.connect(autocommit=True, **options)


def add(connection, user):
    insert = "INSERT INTO photos (user_id) VALUES (%s) RETURNING id"
    return connection.execute(insert, [user]).fetchone()[0]


def add_many(connection, users):
    """In the order of the users"""
    with connection.cursor() as cursor:
        insert = "INSERT INTO photos (user_id) VALUES (%s) RETURNING id"
        cursor.executemany(insert, [(user,) for user in users], returning=True)
        return [result.fetchone()[0] for result in cursor.results()]


def add_in_pipeline(connection, users):
    insert = "INSERT INTO photos (user_id) VALUES (%s) RETURNING id"
    with connection.pipeline():
        cursors = [connection.execute(insert, [user]) for user in users]
        return [cursor.fetchone()[0] for cursor in cursors]


def load(connection, users):
    """As fast as can be: the column is left out, so each row gets its id"""
    with connection.cursor() as cursor, cursor.copy("COPY photos (user_id) FROM STDIN") as copy:
        for user in users:
            copy.write_row([user])


def load_with_ids(connection, users):
    """Or with ids that were asked for before, where they are needed at once"""
    with connection.cursor() as cursor:
        ids = [id for (id,) in cursor.execute("SELECT next_ids(5, 'photos_id_seq', %s)", [len(users)])]
        with cursor.copy("COPY photos (id, user_id) FROM STDIN") as copy:
            for row in zip(ids, users):
                copy.write_row(row)
    return ids


async def add_at_once(users):
    """A connection for each"""

    async def add(user):
        options = {"prepare_threshold": None} if POOLED else {}
        async with await psycopg.AsyncConnection.connect(autocommit=True, **options) as connection:
            cursor = await connection.execute("INSERT INTO photos (user_id) VALUES (%s) RETURNING id", [user])
            return (await cursor.fetchone())[0]

    return await asyncio.gather(*(add(user) for user in users))


def add_to_shard(connection, user):
    """Where the user's shard is on this server. SET LOCAL ends with the transaction, so PgBouncer can have it"""
    with connection.transaction():
        schema = "insta_ids.schema_of(insta_ids.shard_of(%s))"
        connection.execute(f"SELECT set_config('search_path', {schema} || ', public', true)", [user])
        return add(connection, user)
