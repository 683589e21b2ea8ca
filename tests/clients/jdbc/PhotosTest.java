import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.stream.LongStream;
import org.postgresql.ds.PGSimpleDataSource;

/** Fails by an AssertionError, so it is run with -ea. */
final class PhotosTest {
    private static final boolean POOLED = !env("POOLED", "").isEmpty();
    private static final PGSimpleDataSource SOURCE =
            Photos.dataSource(
                    "127.0.0.1",
                    Integer.parseInt(env("PGPORT", "")),
                    env("PGDATABASE", "postgres"),
                    env("PGUSER", "postgres"),
                    POOLED);
    private static long nextUser = 1000;

    private PhotosTest() {}

    public static void main(String[] arguments) throws Exception {
        try (Connection connection = SOURCE.getConnection()) {
            setUp(connection);
            returning(connection);
            many(connection);
            batch(connection);
            shards(connection);
            errors(connection);
            retry(connection);
            preparedStatements(connection);
        }
    }

    private static String env(String name, String otherwise) {
        return System.getenv().getOrDefault(name, otherwise);
    }

    private static void setUp(Connection connection) throws SQLException {
        execute(connection, "CREATE SEQUENCE photos_id_seq");
        execute(
                connection,
                "CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(5, 'photos_id_seq'), user_id bigint NOT NULL)");
        execute(connection, "SELECT insta_ids.init(8)");
        execute(connection, "SELECT insta_ids.add_node('a', 'host=a dbname=app'), insta_ids.add_node('b', 'host=b dbname=app')");
        execute(connection, "SELECT insta_ids.assign(0, 5, 'a'), insta_ids.assign(6, 7, 'b')");
        execute(
                connection,
                "SELECT insta_ids.add_migration('0001 photos',"
                        + " 'CREATE TABLE photos (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint NOT NULL)')");
        execute(connection, "CALL insta_ids.create_shards(0, 7)");
    }

    private static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    /** Users that no other test has. */
    private static long[] someUsers(int count) {
        nextUser += count;
        return LongStream.range(nextUser - count, nextUser).toArray();
    }

    /** These users have these ids, which are of this shard. */
    private static void stored(Connection connection, String table, int shard, long[] users, long... ids)
            throws SQLException {
        Map<Long, Long> photos = new HashMap<>();
        for (int i = 0; i < users.length; i++) {
            photos.put(ids[i], users[i]);
        }
        assert photos.size() == users.length && ids.length == users.length : "ids are repeated";
        String select = "SELECT id, user_id, id_shard(id) FROM " + table + " WHERE user_id = ANY (?)";
        try (PreparedStatement statement = connection.prepareStatement(select)) {
            statement.setObject(1, users);
            try (ResultSet rows = statement.executeQuery()) {
                while (rows.next()) {
                    Long user = photos.remove(rows.getLong(1));
                    assert user != null && user == rows.getLong(2) : "user " + rows.getLong(2) + " has another id";
                    assert rows.getInt(3) == shard : "shard " + rows.getInt(3);
                }
            }
        }
        assert photos.isEmpty() : photos.size() + " photos are not stored";
    }

    private static void returning(Connection connection) throws SQLException {
        long[] users = someUsers(20);
        long[] ids = new long[users.length];
        for (int i = 0; i < users.length; i++) {
            ids[i] = Photos.insert(connection, users[i]);
            assert (ids[i] >> 10 & 8191) == 5 : ids[i];
        }
        stored(connection, "photos", 5, users, ids);
    }

    private static void many(Connection connection) throws SQLException {
        long[] users = someUsers(3000);
        stored(connection, "photos", 5, users, Photos.insertMany(connection, users));
    }

    private static void batch(Connection connection) throws SQLException {
        long[] users = someUsers(3000);
        stored(connection, "photos", 5, users, Photos.insertBatch(connection, users));
    }

    private static void shards(Connection connection) throws SQLException {
        long[] users = someUsers(1);
        stored(connection, "insta4.photos", 4, users, Photos.insertInto(connection, 4, users[0]));
    }

    private static void refused(String code, Photos.Work<?> work) {
        try {
            work.run();
        } catch (SQLException error) {
            assert code.equals(error.getSQLState()) : error;
            return;
        }
        throw new AssertionError("not refused");
    }

    private static void errors(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement();
                ResultSet rows = statement.executeQuery("SELECT insta5.next_id()")) {
            rows.next();
            long id = rows.getLong(1);
            refused("23514", () -> {
                execute(connection, "INSERT INTO insta4.photos (id, user_id) VALUES (" + id + ", 4)");
                return null;
            });
        }
        refused("42P01", () -> Photos.insertInto(connection, 6, 4));
        refused("25006", () -> {
            execute(connection, "SELECT next_id(6, 'photos_id_seq')");
            return null;
        });
    }

    private static void retry(Connection connection) throws Exception {
        long[] users = someUsers(1);
        int[] tries = {0};
        Photos.Work<Long> insert = () -> {
            tries[0]++;
            return Photos.insertInto(connection, 2, users[0]);
        };
        execute(connection, "SELECT insta_ids.fence(2)");
        refused("25006", () -> {
            try {
                return Photos.retry(Duration.ofMillis(100), insert);
            } catch (InterruptedException error) {
                throw new AssertionError(error);
            }
        });
        tries[0] = 0;
        Thread opener = new Thread(() -> {
            try (Connection other = SOURCE.getConnection()) {
                Thread.sleep(500);
                execute(other, "SELECT insta_ids.unfence(2)");
            } catch (SQLException | InterruptedException error) {
                throw new AssertionError(error);
            }
        });
        opener.start();
        long id = Photos.retry(Duration.ofSeconds(10), insert);
        opener.join();
        assert tries[0] > 1 : tries[0];
        stored(connection, "insta2.photos", 2, users, id);
    }

    /** A second connection prepares the same, and both share connections of the server. */
    private static void preparedStatements(Connection connection) throws SQLException {
        long[] users = someUsers(40);
        long[] ids = new long[users.length];
        try (Connection other = SOURCE.getConnection()) {
            for (int i = 0; i < users.length; i++) {
                ids[i] = Photos.insert(i % 2 == 0 ? connection : other, users[i]);
            }
        }
        stored(connection, "photos", 5, users, ids);
    }
}
