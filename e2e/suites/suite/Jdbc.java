// What applications do with pgjdbc, a case each: prints `ok NAME` or `FAILED NAME: why`.

import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.xa.PGXADataSource;

public class Jdbc {
    static String url;
    static final String USER = "postgres";
    static final String PASSWORD = System.getenv("PASSWORD");

    interface Case {
        void run(Connection connection) throws Exception;
    }

    record Branch(byte[] getGlobalTransactionId) implements Xid {
        public int getFormatId() { return 1; }
        public byte[] getBranchQualifier() { return new byte[] {1}; }
    }

    public static void main(String[] arguments) throws Exception {
        url = arguments[0];
        try (Connection connection = connect("")) {
            run(connection, "CREATE TABLE items (id serial PRIMARY KEY, name text, number int)");
        }
        for (String mode : new String[] {"simple", "extended", "extendedForPrepared", "extendedCacheEverything"}) {
            everyMode(mode);
        }
        statements();
        transactions();
        protocol();
        settings();
    }

    static void everyMode(String mode) {
        String options = "&preferQueryMode=" + mode;
        check("select, " + mode, options, c -> same(value(c, "SELECT 1"), 1));
        check("a statement many times, " + mode, options + "&prepareThreshold=3", c -> {
            try (PreparedStatement statement = c.prepareStatement("SELECT ?::int + 1")) {
                for (int i = 0; i < 12; i++) {
                    statement.setInt(1, i);
                    same(first(statement), i + 1);
                }
            }
        });
        check("rollback, " + mode, options, c -> {
            c.setAutoCommit(false);
            run(c, "INSERT INTO items (name) VALUES ('rollback " + mode + "')");
            c.rollback();
            same(value(c, "SELECT count(*) FROM items WHERE name = 'rollback " + mode + "'"), 0);
            c.commit();
        });
        check("savepoint, " + mode, options, c -> {
            c.setAutoCommit(false);
            Savepoint savepoint = c.setSavepoint();
            fails("22012", () -> run(c, "SELECT 1 / 0"));
            c.rollback(savepoint);
            same(value(c, "SELECT 7"), 7);
            c.commit();
        });
        check("batch, " + mode, options, c -> {
            insert(c, "batch " + mode, 300);
            same(value(c, "SELECT count(*) FROM items WHERE name = 'batch " + mode + "'"), 300);
        });
        check("generated keys, " + mode, options, c -> {
            String sql = "INSERT INTO items (name) VALUES ('key')";
            try (PreparedStatement statement = c.prepareStatement(sql, Statement.RETURN_GENERATED_KEYS)) {
                statement.executeUpdate();
                try (ResultSet keys = statement.getGeneratedKeys()) {
                    same(keys.next(), true);
                }
            }
        });
    }

    static void statements() {
        check("batch as one insert", "&reWriteBatchedInserts=true", c -> {
            insert(c, "rewritten", 1000);
            same(value(c, "SELECT count(*) FROM items WHERE name = 'rewritten'"), 1000);
        });
        check("rows a few at a time", "", c -> {
            c.setAutoCommit(false);
            try (PreparedStatement statement = c.prepareStatement("SELECT * FROM generate_series(1, 5000)")) {
                statement.setFetchSize(100);
                int rows = 0;
                try (ResultSet result = statement.executeQuery()) {
                    while (result.next()) {
                        rows++;
                    }
                }
                same(rows, 5000);
            }
            c.commit();
        });
        check("binary arrays", "&prepareThreshold=-1", c -> {
            try (PreparedStatement statement = c.prepareStatement("SELECT ?::int[]")) {
                for (int i = 0; i < 7; i++) {
                    statement.setArray(1, c.createArrayOf("int4", new Integer[] {1, 2, i}));
                    try (ResultSet result = statement.executeQuery()) {
                        result.next();
                        same(((Integer[]) result.getArray(1).getArray())[2], i);
                    }
                }
            }
        });
        check("a table changes under a statement", "&prepareThreshold=1&autosave=conservative", c -> {
            run(c, "CREATE TABLE changing (a int); INSERT INTO changing VALUES (1)");
            try (PreparedStatement statement = c.prepareStatement("SELECT * FROM changing")) {
                for (int i = 0; i < 3; i++) {
                    first(statement);
                }
                run(c, "ALTER TABLE changing ADD b int");
                try (ResultSet result = statement.executeQuery()) {
                    same(result.getMetaData().getColumnCount(), 2);
                }
            }
        });
        check("metadata", "", c -> {
            try (ResultSet columns = c.getMetaData().getColumns(null, "public", "items", null)) {
                int count = 0;
                while (columns.next()) {
                    count++;
                }
                same(count, 3);
            }
        });
    }

    static void transactions() {
        check("read only", "", c -> {
            c.setReadOnly(true);
            c.setAutoCommit(false);
            same(value(c, "SELECT 5"), 5);
            fails("25006", () -> run(c, "INSERT INTO items (name) VALUES ('read only')"));
            c.rollback();
        });
        check("always read only", "&readOnly=true&readOnlyMode=always", c -> {
            same(value(c, "SELECT 5"), 5);
            fails("25006", () -> run(c, "INSERT INTO items (name) VALUES ('read only')"));
        });
        check("serializable", "", c -> {
            c.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
            c.setAutoCommit(false);
            same(value(c, "SHOW transaction_isolation"), "serializable");
            c.commit();
        });
        check("two-phase commit", "", c -> {
            PGXADataSource source = new PGXADataSource();
            source.setUrl(url);
            source.setUser(USER);
            source.setPassword(PASSWORD);
            var connection = source.getXAConnection();
            XAResource resource = connection.getXAResource();
            Xid branch = new Branch("two-phase".getBytes());
            resource.start(branch, XAResource.TMNOFLAGS);
            run(connection.getConnection(), "INSERT INTO items (name) VALUES ('two-phase')");
            resource.end(branch, XAResource.TMSUCCESS);
            same(resource.prepare(branch), XAResource.XA_OK);
            resource.commit(branch, false);
            connection.close();
            same(value(c, "SELECT count(*) FROM items WHERE name = 'two-phase'"), 1);
        });
        check("large object", "", c -> {
            c.setAutoCommit(false);
            var objects = c.unwrap(PGConnection.class).getLargeObjectAPI();
            long id = objects.createLO();
            try (var object = objects.open(id)) {
                object.write(new byte[100_000]);
            }
            try (var object = objects.open(id)) {
                same(object.size(), 100_000);
            }
            objects.delete(id);
            c.commit();
        });
    }

    static void protocol() {
        check("copy in and out", "", c -> {
            var copy = c.unwrap(PGConnection.class).getCopyAPI();
            StringBuilder rows = new StringBuilder();
            for (int i = 0; i < 20_000; i++) {
                rows.append("copied\t").append(i).append('\n');
            }
            same(copy.copyIn("COPY items (name, number) FROM stdin", new StringReader(rows.toString())), 20_000);
            String sql = "COPY (SELECT number FROM items WHERE name = 'copied') TO stdout";
            same(copy.copyOut(sql, new StringWriter()), 20_000);
        });
        check("listen and notify", "", c -> {
            run(c, "LISTEN channel");
            try (Connection other = connect("")) {
                run(other, "NOTIFY channel, 'news'");
            }
            PGNotification[] news = c.unwrap(PGConnection.class).getNotifications(5000);
            same(news.length, 1);
            same(news[0].getParameter(), "news");
        });
        check("timeout", "", c -> {
            try (Statement statement = c.createStatement()) {
                statement.setQueryTimeout(1);
                fails("57014", () -> statement.execute("SELECT pg_sleep(20)"));
            }
            same(value(c, "SELECT 3"), 3);
        });
        check("cancel", "", c -> {
            try (Statement statement = c.createStatement()) {
                Thread canceller = new Thread(() -> {
                    try {
                        Thread.sleep(500);
                        statement.cancel();
                    } catch (InterruptedException | SQLException error) {
                        throw new IllegalStateException(error);
                    }
                });
                canceller.start();
                fails("57014", () -> statement.execute("SELECT pg_sleep(20)"));
                canceller.join();
            }
        });
        check("32 connections", "", c -> {
            List<Connection> connections = new ArrayList<>();
            for (int i = 0; i < 32; i++) {
                connections.add(connect(""));
            }
            for (Connection each : connections) {
                same(value(each, "SELECT 1"), 1);
                each.close();
            }
        });
    }

    static void settings() {
        check("the primary is wanted", "&targetServerType=primary",
            c -> same(value(c, "SELECT pg_is_in_recovery()"), false));
        String options = "&currentSchema=pg_catalog&ApplicationName=jdbc&options=-c%20work_mem=5MB";
        check("settings of the login", options, c -> {
            same(value(c, "SHOW search_path"), "pg_catalog");
            same(value(c, "SHOW application_name"), "jdbc");
            same(value(c, "SHOW work_mem"), "5MB");
        });
        check("the application's name changes", "", c -> {
            c.setClientInfo("ApplicationName", "later");
            same(value(c, "SHOW application_name"), "later");
        });
    }

    static void check(String name, String options, Case body) {
        try (Connection connection = connect(options)) {
            body.run(connection);
            System.out.println("ok " + name);
        } catch (Exception | AssertionError error) {
            System.out.println("FAILED " + name + ": " + error);
        }
    }

    static Connection connect(String options) throws SQLException {
        return DriverManager.getConnection(url + options, USER, PASSWORD);
    }

    static void run(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    static Object value(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet result = statement.executeQuery(sql)) {
            result.next();
            return result.getObject(1);
        }
    }

    static Object first(PreparedStatement statement) throws SQLException {
        try (ResultSet result = statement.executeQuery()) {
            result.next();
            return result.getObject(1);
        }
    }

    static void insert(Connection connection, String name, int count) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement("INSERT INTO items (name, number) VALUES (?, ?)")) {
            for (int i = 0; i < count; i++) {
                statement.setString(1, name);
                statement.setInt(2, i);
                statement.addBatch();
            }
            same(statement.executeBatch().length, count);
        }
    }

    interface Body {
        void run() throws SQLException;
    }

    static void fails(String state, Body body) {
        try {
            body.run();
        } catch (SQLException error) {
            same(error.getSQLState(), state);
            return;
        }
        throw new AssertionError("did not fail with " + state);
    }

    static void same(Object found, Object wanted) {
        if (!Objects.equals(String.valueOf(found), String.valueOf(wanted))) {
            throw new AssertionError("found " + found + ", wanted " + wanted);
        }
    }
}
