import asyncio
import itertools

import psycopg
import pytest
from psycopg import errors

import photos

users = itertools.count(1000)


@pytest.fixture(scope="session", autouse=True)
def database():
    with photos.connect() as connection:
        connection.execute(
            """CREATE SEQUENCE photos_id_seq;
               CREATE TABLE photos (
                   id bigint PRIMARY KEY DEFAULT next_id(5, 'photos_id_seq'),
                   user_id bigint NOT NULL
               );
               SELECT insta_ids.init(8);
               SELECT insta_ids.add_node('a', 'host=a dbname=app'), insta_ids.add_node('b', 'host=b dbname=app');
               SELECT insta_ids.assign(0, 5, 'a'), insta_ids.assign(6, 7, 'b');
               SELECT insta_ids.add_migration('0001 photos', $$
                   CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL)
               $$)"""
        )
        connection.execute("CALL insta_ids.create_shards(0, 7)")


@pytest.fixture
def connection():
    with photos.connect() as connection:
        yield connection


def some_users(number):
    return list(itertools.islice(users, number))


def stored(connection, users, ids, shard=5, table="photos"):
    """These users have these ids, which are of this shard."""
    rows = connection.execute(f"SELECT user_id, id, id_shard(id) FROM {table} WHERE user_id = ANY(%s)", [users])
    assert sorted(rows) == sorted((user, id, shard) for user, id in zip(users, ids, strict=True))
    assert len(set(ids)) == len(users)


def test_returning(connection):
    some = some_users(20)
    ids = [photos.add(connection, user) for user in some]
    stored(connection, some, ids)
    assert all(id >> 10 & 8191 == 5 for id in ids)


@pytest.mark.parametrize("add", [photos.add_many, photos.add_in_pipeline, photos.load_with_ids])
def test_many(connection, add):
    some = some_users(3000)
    ids = add(connection, some)
    stored(connection, some, ids)
    # One session makes them in this order.
    assert photos.POOLED or ids == sorted(ids)


def test_copy(connection):
    some = some_users(3000)
    photos.load(connection, some)
    read = "SELECT id, id_shard(id) FROM photos WHERE user_id = ANY(%s)"
    rows = connection.execute(read, [some]).fetchall()
    assert len({id for id, _ in rows}) == 3000 and {shard for _, shard in rows} == {5}


def test_async():
    some = some_users(20)
    ids = asyncio.run(photos.add_at_once(some))
    with photos.connect() as connection:
        stored(connection, some, ids)


def test_shards(connection):
    # User 1004 is of shard 1004 % 8.
    id = photos.add_to_shard(connection, 1004)
    stored(connection, [1004], [id], shard=4, table="insta4.photos")
    # What was set for that transaction is gone.
    stored(connection, [user := next(users)], [photos.add(connection, user)])


def test_keys(connection):
    # psycopg sends a text without a type, and a number with one.
    query = "SELECT insta_ids.shard_of(%s), insta_ids.shard_of(%s, 8), insta_ids.shard_of_text(%s)"
    for key in (1004, "1004"):
        assert connection.execute(query, [key, key, str(key)]).fetchone() == (4, 4, 1)
    with pytest.raises(errors.InvalidTextRepresentation):
        connection.execute("SELECT insta_ids.shard_of(%s)", ["kevin"])


def test_errors(connection):
    [(id,)] = connection.execute("SELECT insta5.next_id()")
    with pytest.raises(errors.CheckViolation) as error:
        connection.execute("INSERT INTO insta4.photos (id, user_id) VALUES (%s, 4)", [id])
    assert error.value.sqlstate == "23514" and error.value.diag.constraint_name == "photos_id_check"
    with pytest.raises(errors.ReadOnlySqlTransaction) as error:
        connection.execute("SELECT next_id(6, 'photos_id_seq')")
    assert error.value.sqlstate == "25006" and '"b"' in error.value.diag.message_detail, error.value.diag.message_detail


def pgbouncer():
    """Its version"""
    with psycopg.connect(dbname="pgbouncer", autocommit=True, cursor_factory=psycopg.ClientCursor) as console:
        [(version,)] = console.execute("SHOW VERSION")
    return tuple(int(part) for part in version.removeprefix("PgBouncer ").split(".")[:2])


def test_prepared_statements():
    def both(threshold):
        some = some_users(20)
        with photos.connect() as one, photos.connect() as other:
            one.prepare_threshold = other.prepare_threshold = threshold
            ids = [photos.add(connection, user) for connection, user in zip(itertools.cycle((one, other)), some)]
            stored(one, some, ids)

    both(None)
    # From then on it keeps them, unless it is told not to.
    if photos.POOLED and pgbouncer() < (1, 24):
        # Both prepare under the same name, in a connection that they share.
        with pytest.raises((errors.DuplicatePreparedStatement, errors.InvalidSqlStatementName)):
            both(0)
    else:
        both(0)


def test_listen(connection):
    """Of a new map, a client hears only in a session of its own."""
    connection.execute("LISTEN insta_ids_map")
    with photos.connect() as other:
        other.execute("SELECT insta_ids.add_node('c', 'host=c dbname=app')")
        [(version,)] = other.execute("SELECT insta_ids.shard_map() ->> 'version'")
    heard = [note.payload for note in connection.notifies(timeout=1 if photos.POOLED else 60, stop_after=1)]
    assert heard == ([] if photos.POOLED else [version])


def test_settings_of_a_session():
    """PgBouncer refuses them with the connection; what is set later, other clients have."""
    options = {"options": "-c search_path=insta4,public"}
    if photos.POOLED:
        with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
            photos.connect(**options)
        with photos.connect() as one, photos.connect() as other:
            one.execute("SET search_path = insta4, public")
            assert other.execute("SHOW search_path").fetchone() == ("insta4, public",)
            one.execute("RESET search_path")
    else:
        with photos.connect(**options) as connection:
            stored(connection, [user := next(users)], [photos.add(connection, user)], shard=4)
