import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import org.postgresql.ds.PGSimpleDataSource;

/** Photos whose ids the server makes, by JDBC. */
final class Photos {
    private Photos() {}

    static PGSimpleDataSource dataSource(String host, int port, String database, String user, boolean pooled) {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setServerNames(new String[] {host});
        source.setPortNumbers(new int[] {port});
        source.setDatabaseName(database);
        source.setUser(user);
        // A batch of INSERTs goes as few statements of many rows.
        source.setReWriteBatchedInserts(true);
        // PgBouncer before 1.21 knows nothing of prepared statements.
        if (pooled) {
            source.setPrepareThreshold(0);
        }
        return source;
    }

    static long insert(Connection connection, long user) throws SQLException {
        String insert = "INSERT INTO photos (user_id) VALUES (?) RETURNING id";
        try (PreparedStatement statement = connection.prepareStatement(insert)) {
            statement.setLong(1, user);
            try (ResultSet rows = statement.executeQuery()) {
                rows.next();
                return rows.getLong(1);
            }
        }
    }

    /** The ids are in the order of the users. */
    static long[] insertMany(Connection connection, long[] users) throws SQLException {
        String insert = "INSERT INTO photos (user_id) SELECT unnest(?::bigint[]) RETURNING id";
        try (PreparedStatement statement = connection.prepareStatement(insert)) {
            statement.setObject(1, users);
            return ids(statement, users.length);
        }
    }

    /** Asks for the ids before, so that the rows can go as a batch. */
    static long[] insertBatch(Connection connection, long[] users) throws SQLException {
        long[] ids;
        try (PreparedStatement mint = connection.prepareStatement("SELECT next_ids(5, 'photos_id_seq', ?)")) {
            mint.setInt(1, users.length);
            ids = ids(mint, users.length);
        }
        String insert = "INSERT INTO photos (id, user_id) VALUES (?, ?)";
        try (PreparedStatement statement = connection.prepareStatement(insert)) {
            for (int i = 0; i < users.length; i++) {
                statement.setLong(1, ids[i]);
                statement.setLong(2, users[i]);
                statement.addBatch();
            }
            statement.executeBatch();
        }
        return ids;
    }

    static long insertInto(Connection connection, int shard, long user) throws SQLException {
        String insert = "INSERT INTO insta" + shard + ".photos (user_id) VALUES (?)";
        try (PreparedStatement statement = connection.prepareStatement(insert, new String[] {"id"})) {
            statement.setLong(1, user);
            statement.executeUpdate();
            try (ResultSet keys = statement.getGeneratedKeys()) {
                keys.next();
                return keys.getLong("id");
            }
        }
    }

    interface Work<T> {
        T run() throws SQLException;
    }

    /** The SQLSTATEs of a server on which the shard is fenced or no longer exists. Nothing was written. */
    private static final List<String> MOVED = Arrays.asList("25006", "42P01", "3F000");

    /** Does the work again while the shard moves. The work looks up the shard's server each time. Gives up after about the limit. */
    static <T> T retry(Duration limit, Work<T> work) throws SQLException, InterruptedException {
        long end = System.nanoTime() + limit.toNanos();
        for (long pause = 10; ; pause *= 2) {
            try {
                return work.run();
            } catch (SQLException error) {
                if (!MOVED.contains(error.getSQLState()) || System.nanoTime() + pause * 1_000_000 > end) {
                    throw error;
                }
            }
            Thread.sleep(pause);
        }
    }

    private static long[] ids(PreparedStatement statement, int count) throws SQLException {
        long[] ids = new long[count];
        try (ResultSet rows = statement.executeQuery()) {
            for (int i = 0; rows.next(); i++) {
                ids[i] = rows.getLong(1);
            }
        }
        return ids;
    }
}
