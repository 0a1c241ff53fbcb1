//! Reads go to the standby and everything else to the primary; what each of the public bug reports was about.

use pgrouting_contract::config::PoolMode;
use pgrouting_contract::report::{Role, Rotation, ServerReport, SplitReport};
use pgrouting_contract::split::{Consistency, SplitConfig, Transactions, WhenNoReplica};
use pgrouting_contract::stage::Stage;

use super::support::client::{Client, Login};
use super::support::message::{
    Answer, batch, bind, close, copy_data, copy_done, describe, execute, flush, parse, query, sync,
};
use super::support::proxy::{Proxy, local, pool_of, server};
use super::support::server::{Database, catch_up, primary, standby};
use super::support::{free_port, poll};

/// A pool that splits, and its database.
pub struct Split {
    /// The database.
    pub database: Database,
    /// The proxy before it.
    pub proxy: Proxy,
}

/// Where a statement is expected to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    Primary,
    Replica,
}
use To::{Primary, Replica};

impl Split {
    /// With these tables and functions, in a pool with this section.
    fn with(setup: &[&str], split: SplitConfig) -> Self {
        Self::of(setup, |config| config.split = split)
    }

    pub fn of(setup: &[&str], change: impl FnOnce(&mut pgrouting_contract::config::ProxyConfig)) -> Self {
        let database = Database::create();
        let mut owner = database.direct();
        setup.iter().for_each(|sql| drop(owner.run(sql)));
        let mut config = pool_of(6);
        config.stage = Stage::Split;
        config.servers = vec![server("one", primary().port), server("two", standby().port)];
        config.split.consistency = Consistency::Eventual;
        change(&mut config);
        let this = Self { database, proxy: Proxy::start(config) };
        poll("the replica to be known", || {
            let report = this.proxy.report();
            let is_in =
                |server: &ServerReport| server.role == Role::Replica && server.rotation == Rotation::In;
            report.servers.iter().any(is_in).then_some(())
        });
        if this.proxy.config.pooling.mode == PoolMode::Transaction {
            // Asks for the catalog, which at another stage not every session does.
            if this.proxy.config.stage == Stage::Split {
                this.client().run("SELECT 1");
                this.settle();
            }
        }
        this
    }

    /// The usual one: nothing but the routing decides.
    pub fn new(setup: &[&str]) -> Self {
        Self::of(setup, |_| {})
    }

    pub fn client(&self) -> Client {
        self.proxy.client(&self.database)
    }

    /// Waits until the standby shows what the primary has, and the proxy knows the catalog.
    fn settle(&self) {
        catch_up(&mut primary().admin("postgres"), &mut standby().admin("postgres"));
        poll("the catalog", || self.proxy.report().split.catalogs.get(&self.database.name)?.then_some(()));
    }
}

/// Where the client's last transaction went.
pub fn went(client: &mut Client) -> To {
    let answer = client.run("SHOW ROUTE LAST");
    if answer.rows()[0][0].as_deref() == Some("two") { Replica } else { Primary }
}

pub fn why(client: &mut Client) -> String {
    client.run("SHOW ROUTE LAST").rows()[0][1].clone().unwrap()
}

/// Runs a statement in the extended protocol.
fn extended(client: &mut Client, sql: &str) -> Answer {
    client.ask(&batch(sql))
}

/// Checks where each statement goes, alone and between reads, in the simple and in the extended protocol, and that no
/// server refuses it because of what it is.
fn check(split: &Split, expected: &[(&str, To)]) {
    let mut client = split.client();
    for (sql, to) in expected {
        let answer = client.try_query(sql);
        assert_ne!(answer.sqlstate().as_deref(), Some("25006"), "{sql}: {}", answer.error());
        assert_eq!(went(&mut client), *to, "simple: {sql}: {}", why(&mut client));
        if *to == Primary {
            split.settle();
        }
        let answer = extended(&mut client, sql);
        assert_ne!(answer.sqlstate().as_deref(), Some("25006"), "{sql}: {}", answer.error());
        assert_eq!(went(&mut client), *to, "extended: {sql}: {}", why(&mut client));
        if *to == Primary {
            split.settle();
        }
        // What is read stays right whatever comes between.
        client.send(&[batch("SELECT 'before'"), batch(sql), batch("SELECT 'after'")].concat());
        let answers: Vec<_> = (0..3).map(|_| client.ready()).collect();
        assert_eq!(answers[0].column(), ["before"], "{sql}");
        assert_ne!(answers[1].sqlstate().as_deref(), Some("25006"), "pipelined: {sql}");
        assert_eq!(answers[2].column(), ["after"], "{sql}");
        split.settle();
    }
}

pub const CRATE: [&str; 3] = [
    "CREATE TABLE crate(id int PRIMARY KEY, note text, qty int DEFAULT 0)",
    "INSERT INTO crate SELECT g, 'n'||g, g FROM generate_series(1,5) g",
    "CREATE SEQUENCE ticket_no",
];

#[test]
fn case_001_sequences_are_advanced_on_the_primary() {
    let split = Split::new(&CRATE);
    check(
        &split,
        &[
            ("SELECT nextval('ticket_no')", Primary),
            ("SELECT setval('ticket_no', 41)", Primary),
            ("SELECT CASE WHEN id > 3 THEN nextval('ticket_no') ELSE 0 END FROM crate ORDER BY id", Primary),
            ("VALUES (1, nextval('ticket_no'))", Primary),
            ("SELECT last_value FROM ticket_no", Primary),
        ],
    );
}

#[test]
fn case_002_a_name_is_a_name_however_it_is_spelt() {
    let split = Split::new(&CRATE);
    check(
        &split,
        &[
            ("SELECT pg_catalog.nextval('ticket_no')", Primary),
            ("SELECT \"nextval\"('ticket_no')", Primary),
            ("SELECT NextVal('ticket_no')", Primary),
            ("SELECT U&\"n\\0065xtval\"('ticket_no')", Primary),
            ("SELECT \"pg_catalog\" . nextval /* gap */ ('ticket_no')", Primary),
        ],
    );
}

#[test]
fn case_005_case_006_locking_reads_go_to_the_primary_wherever_the_lock_stands() {
    let split = Split::new(&CRATE);
    check(
        &split,
        &[
            ("SELECT id FROM crate WHERE id = 1 FOR UPDATE", Primary),
            (
                "SELECT id FROM crate ORDER BY qty, note ASC NULLS FIRST LIMIT 2 FOR NO KEY\nUPDATE OF crate SKIP LOCKED",
                Primary,
            ),
            ("SELECT id FROM crate WHERE id=1 FOR SHARE NOWAIT", Primary),
            ("SELECT id FROM crate WHERE id=1 FOR KEY SHARE", Primary),
            (
                "WITH pick AS (SELECT id FROM crate WHERE qty > 2 FOR UPDATE) SELECT count(*) FROM pick",
                Primary,
            ),
            ("SELECT (SELECT id FROM crate WHERE id = 1 FOR SHARE)", Primary),
            ("(SELECT id FROM crate WHERE id = 1 FOR UPDATE)", Primary),
            ("SELECT * FROM (SELECT id FROM crate FOR KEY SHARE) z WHERE id = 4", Primary),
            ("SELECT 1 WHERE EXISTS (SELECT 1 FROM crate WHERE id = 2 FOR UPDATE)", Primary),
        ],
    );
}

#[test]
fn case_008_case_009_a_write_in_a_with_clause_is_a_write() {
    let split = Split::new(&CRATE);
    check(
        &split,
        &[
            ("WITH gone AS (DELETE FROM crate WHERE id = 1 RETURNING id) SELECT id FROM gone", Primary),
            (
                "WITH a AS (SELECT 2 AS k), b AS (UPDATE crate SET qty = 0 FROM a WHERE crate.id = a.k RETURNING crate.id) \
                 SELECT count(*) FROM a",
                Primary,
            ),
            ("(WITH gone AS (DELETE FROM crate WHERE id = 3 RETURNING id) SELECT id FROM gone)", Primary),
            ("WITH src AS (SELECT 4 AS k) DELETE FROM crate USING src WHERE crate.id = src.k", Primary),
            (
                "WITH x AS -- why\n (INSERT INTO crate VALUES (9,'n9',9) ON CONFLICT DO NOTHING RETURNING id) TABLE x",
                Primary,
            ),
            ("SELECT * FROM (WITH gone AS (DELETE FROM crate RETURNING id) SELECT id FROM gone) z", Primary),
        ],
    );
    let refused = split
        .client()
        .try_query("SELECT * FROM (WITH gone AS (DELETE FROM crate RETURNING id) SELECT id FROM gone) z");
    assert_eq!(refused.sqlstate().as_deref(), Some("0A000"), "PostgreSQL's own error");
}

#[test]
fn case_011_select_into_defines_a_table() {
    let split = Split::new(&CRATE);
    check(
        &split,
        &[
            ("SELECT id, qty INTO crate_copy FROM crate", Primary),
            ("SELECT 1 AS one INTO UNLOGGED crate_fast", Primary),
            ("CREATE TABLE crate_bis AS TABLE crate WITH NO DATA", Primary),
        ],
    );
    assert_eq!(split.database.direct().column("SELECT count(*) FROM crate_copy"), ["5"]);
}

#[test]
fn case_012_explain_runs_what_it_analyzes() {
    let split = Split::new(&CRATE);
    check(
        &split,
        &[
            ("EXPLAIN ANALYZE UPDATE crate SET qty = qty", Primary),
            ("EXPLAIN (COSTS off, ANALYZE) DELETE FROM crate WHERE id = 1", Primary),
            ("EXPLAIN (ANALYZE 1, BUFFERS) SELECT nextval('ticket_no')", Primary),
            ("EXPLAIN UPDATE crate SET qty = 0", Replica),
            ("EXPLAIN (ANALYZE false, COSTS off) INSERT INTO crate VALUES (99)", Replica),
            ("EXPLAIN (VERBOSE) SELECT id FROM crate", Replica),
            ("EXPLAIN ANALYZE SELECT id FROM crate", Replica),
        ],
    );
    assert_eq!(split.database.direct().column("SELECT count(*) FROM crate WHERE id = 99"), ["0"]);
}

#[test]
fn case_013_copy_goes_by_its_direction_and_its_query() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    client.send(&query("COPY crate FROM STDIN"));
    client.until('G');
    client.send(&copy_data(b"40\tx\t1\n"));
    assert_eq!(client.ask(&copy_done()).tags(), ["COPY 1"]);
    assert_eq!(went(&mut client), Primary);
    split.settle();
    for (sql, to, data) in [
        ("COPY (INSERT INTO crate VALUES (50,'x',1) RETURNING id) TO STDOUT", Primary, "50\n"),
        ("COPY (SELECT nextval('ticket_no')) TO STDOUT", Primary, "1\n"),
        ("COPY (SELECT id FROM crate WHERE id=2) TO STDOUT", Replica, "2\n"),
        ("COPY crate (id) TO STDOUT WITH (FORMAT csv)", Replica, "1\n"),
    ] {
        let answer = client.run(sql);
        assert_eq!(went(&mut client), to, "{sql}");
        assert_eq!(answer.of('d').next().unwrap().body(), data.as_bytes(), "{sql}");
        split.settle();
    }
}

#[test]
fn case_014_several_statements_go_where_one_of_them_must() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    for (sql, to, tags) in [
        ("SELECT 1; INSERT INTO crate VALUES (77,'x',1)", Primary, &["SELECT 1", "INSERT 0 1"][..]),
        ("SELECT count(*) FROM crate; SELECT nextval('ticket_no')", Primary, &["SELECT 1", "SELECT 1"]),
        ("SHOW server_version_num; DELETE FROM crate WHERE id = 77; --", Primary, &["SHOW", "DELETE 1"]),
        (
            "SELECT id FROM crate WHERE id=1; SELECT id FROM crate WHERE id=2",
            Replica,
            &["SELECT 1", "SELECT 1"],
        ),
        (";; SELECT 3 ;;", Replica, &["SELECT 1"]),
    ] {
        assert_eq!(client.run(sql).tags(), tags, "{sql}");
        assert_eq!(went(&mut client), to, "{sql}");
    }
}

#[test]
fn case_015_case_016_several_statements_are_one_transaction() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    let failed = client.try_query("INSERT INTO crate VALUES (31); SELECT 1/0; INSERT INTO crate VALUES (32)");
    assert_eq!(failed.sqlstate().as_deref(), Some("22012"));
    client
        .try_query("BEGIN; INSERT INTO crate VALUES (33); COMMIT; INSERT INTO crate VALUES (34); SELECT 1/0");
    assert_eq!(split.database.direct().column("SELECT id FROM crate WHERE id > 30"), ["33"]);
    let begun = client.run("INSERT INTO crate VALUES (41); BEGIN; INSERT INTO crate VALUES (42)");
    assert_eq!(begun.status(), 'T');
    assert_eq!(client.column("SELECT count(*) FROM crate WHERE id > 40"), ["2"], "in its own transaction");
    assert_eq!(client.run("ROLLBACK").status(), 'I');
    assert_eq!(split.database.direct().column("SELECT count(*) FROM crate WHERE id > 40"), ["0"]);
}

#[test]
fn case_017_case_018_case_019_case_021_case_022_comments_and_quotes_are_read_as_postgres_does() {
    let split = Split::new(&CRATE);
    check(
        &split,
        &[
            ("/*app:depot,line:insert into x*/ SELECT count(*) FROM crate", Replica),
            ("-- delete from crate\n--\n  SELECT count(*) FROM crate", Replica),
            ("-- SELECT 1\nUPDATE crate SET qty = 1 WHERE id = 1", Primary),
            ("/*/**/SELECT*/ UPDATE crate SET qty = 100 WHERE id = 2", Primary),
            ("SELECT 1 /* /* */ ; DELETE FROM crate /* */ */ + 1", Replica),
            ("SELECT/**/nextval/*-*/('ticket_no')", Primary),
            (
                "WITH\n/*k*/d/*k*/AS/*k*/(--\nDELETE--x\nFROM crate WHERE id=5 RETURNING 1)SELECT*FROM d",
                Primary,
            ),
            ("SELECT 'x; DELETE FROM crate; --' AS \"for update\"", Replica),
            ("SELECT count(*) AS nextval FROM crate WHERE note <> '/* insert'", Replica),
            ("SELECT 'it''s -- not' || $q$ ; UPDATE crate SET qty=0 $q$", Replica),
            ("SELECT $a$ $b$ ; DROP TABLE crate; $b$ $a$ IS NOT NULL", Replica),
            ("SELECT 1 AS \"a\"\"; INSERT INTO crate\"", Replica),
            ("SELECT 1 AS a$x$, nextval('ticket_no') AS b$x$", Primary),
            ("SELECT 7 AS c$$, nextval('ticket_no') AS d$$", Primary),
        ],
    );
    let mut client = split.client();
    assert_eq!(client.run("SELECT 1 /* a */ ; DELETE FROM crate WHERE id = 4 /* b */").tags().len(), 2);
    assert_eq!(went(&mut client), Primary);
    client.run("/*app:depot*/ SET client_min_messages TO 'warning'");
    assert_eq!(went(&mut client), Primary);
}

#[test]
fn case_024_where_strings_end_depends_on_a_setting() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    client.run("SET standard_conforming_strings = off");
    let sql = r"SELECT '\'', nextval('ticket_no') --'";
    assert_eq!(client.run(sql).rows()[0], [Some("'".to_owned()), Some("1".to_owned())]);
    assert_eq!(went(&mut client), Primary);
    assert_eq!(split.client().try_query(sql).sqlstate().as_deref(), Some("42601"), "nobody else's setting");
}

#[test]
fn case_026_an_empty_query_is_answered_by_a_server() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    for sql in ["", ";", "-- ping", "/* ping */ ;", "  \n\t "] {
        assert_eq!(client.ask(&query(sql)).types(), "IZ", "{sql:?}");
    }
}

#[test]
fn case_027_case_029_case_030_case_033_what_acts_on_one_server_is_done_on_the_primary() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    for sql in [
        "SELECT pg_try_advisory_xact_lock_shared(9)",
        "SELECT pg_terminate_backend(0)",
        "SELECT pg_is_in_recovery()",
        "SELECT txid_current() > 0",
        "SELECT pg_current_xact_id() IS NOT NULL",
        "SELECT pg_notify('depot', 'one')",
        "NOTIFY depot, 'two'",
        "SELECT lo_from_bytea(0, '\\x6162') > 0",
        "SELECT lo_create(0) > 0",
        "SELECT set_config('my.setting', 'x', false)",
        "SELECT pg_backend_pid()",
        "SHOW transaction_read_only",
        "SELECT current_setting('transaction_read_only')",
        "SELECT count(*) FROM pg_stat_activity",
        "SELECT count(*) FROM pg_locks",
    ] {
        client.run(sql);
        assert_eq!(went(&mut client), Primary, "{sql}");
    }
    for sql in [
        "SELECT pg_current_snapshot() IS NOT NULL",
        "SELECT txid_current_if_assigned() IS NULL",
        "SELECT random()",
    ] {
        client.run(sql);
        assert_eq!(went(&mut client), Replica, "{sql}");
    }
    for sql in [
        "SELECT pg_stat_reset()",
        "SELECT pg_reload_conf()",
        "SELECT slot_name FROM pg_create_physical_replication_slot('probe_slot')",
        "SELECT pg_current_wal_lsn() IS NOT NULL",
        "SELECT pg_logical_emit_message(true, 'hb', '1') IS NOT NULL",
        "SELECT pg_drop_replication_slot('probe_slot')",
        "SELECT lo_put(91001, 2, '\\x63')",
        "SELECT lo_unlink(91001)",
    ] {
        // Not everybody may do these.
        let explained = client.run(&format!("EXPLAIN ROUTE {sql}"));
        assert_eq!(explained.rows()[0][1].as_deref(), Some("primary"), "{sql}");
    }
    let mut other = split.client();
    assert_eq!(client.column("SELECT pg_try_advisory_lock(4711)"), ["t"]);
    assert_eq!(other.column("SELECT pg_try_advisory_lock(4711)"), ["f"], "one lock for all");
    assert_eq!(client.column("SELECT pg_advisory_unlock(4711)"), ["t"]);
}

#[test]
fn case_032_a_listener_hears_what_is_notified_on_the_primary() {
    let split = Split::new(&CRATE);
    let (mut listener, mut other) = (split.client(), split.client());
    listener.run("LISTEN depot");
    other.run("SELECT pg_notify('depot', 'one')");
    assert!(listener.notified().contains("one"));
    other.run("NOTIFY depot, 'two'");
    assert!(listener.notified().contains("two"));
    listener.run("UNLISTEN depot");
}

#[test]
fn case_034_tables_that_are_not_replicated_are_read_on_the_primary() {
    let split = Split::of(
        &[
            "CREATE UNLOGGED TABLE scratch(v int)",
            "INSERT INTO scratch VALUES (1)",
            "CREATE TABLE parent(v int) PARTITION BY LIST (v)",
            "CREATE UNLOGGED TABLE child PARTITION OF parent FOR VALUES IN (1)",
            "CREATE VIEW over_scratch AS SELECT v FROM scratch",
            "CREATE TABLE by_hand(v int)",
            "CREATE TABLE plain(v int)",
        ],
        |config| config.split.primary_tables = vec!["by_hand".to_owned()],
    );
    check(
        &split,
        &[
            ("SELECT v FROM scratch", Primary),
            ("SELECT v FROM \"scratch\"", Primary),
            ("SELECT v FROM public.scratch s", Primary),
            ("SELECT v FROM parent", Primary),
            ("SELECT v FROM over_scratch", Primary),
            ("SELECT v FROM by_hand", Primary),
            ("COPY scratch TO STDOUT", Primary),
            ("SELECT v FROM plain", Replica),
        ],
    );
}

#[test]
fn case_035_case_053_what_is_not_known_to_read_goes_to_the_primary() {
    let split =
        Split::new(&[CRATE[0], CRATE[1], "CREATE MATERIALIZED VIEW crate_sum AS SELECT sum(qty) FROM crate"]);
    let mut client = split.client();
    for sql in [
        "REFRESH MATERIALIZED VIEW crate_sum",
        "VACUUM crate",
        "ANALYZE crate",
        "REINDEX TABLE crate",
        "GRANT SELECT ON crate TO PUBLIC",
        "COMMENT ON TABLE crate IS 'c'",
        "MERGE INTO crate c USING (VALUES (1)) v(i) ON c.id = v.i WHEN NOT MATCHED THEN INSERT VALUES (v.i)",
        "CREATE STATISTICS crate_st ON id, qty FROM crate",
        "ALTER TABLE crate ADD COLUMN w int",
        "CREATE INDEX CONCURRENTLY crate_qty ON crate(qty)",
        "DROP INDEX IF EXISTS crate_none",
        "TRUNCATE crate",
    ] {
        client.run(sql);
        assert_eq!(went(&mut client), Primary, "{sql}");
    }
    split.settle();
    client.run("SELECT * FROM crate_sum");
    assert_eq!(went(&mut client), Replica);
}

#[test]
fn case_037_a_procedure_may_commit() {
    let split = Split::new(&[
        CRATE[0],
        "CREATE PROCEDURE twostep(n int) LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO crate VALUES (n); COMMIT; INSERT INTO crate VALUES (n + 1); END $$",
    ]);
    let mut client = split.client();
    assert_eq!(client.run("CALL twostep(71)").status(), 'I');
    client.run("BEGIN");
    assert_eq!(client.try_query("CALL twostep(81)").sqlstate().as_deref(), Some("2D000"));
    client.run("ROLLBACK");
    assert_eq!(split.database.direct().column("SELECT count(*) FROM crate"), ["2"]);
}

#[test]
fn case_038_cursors_stay_where_they_were_declared() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    client.run("BEGIN");
    client.run("DECLARE cur NO SCROLL CURSOR FOR SELECT id FROM crate ORDER BY id");
    assert_eq!(client.column("FETCH 2 FROM cur"), ["1", "2"]);
    client.run("MOVE 1 IN cur");
    assert_eq!(client.column("FETCH FORWARD ALL FROM cur"), ["4", "5"]);
    client.run("CLOSE cur");
    client.run("DECLARE up CURSOR FOR SELECT id FROM crate FOR UPDATE");
    client.run("COMMIT");
    assert_eq!(client.try_query("FETCH 1 FROM up").sqlstate().as_deref(), Some("34000"));
}

#[test]
fn case_039_statements_that_sql_prepared_stay_with_their_session() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    client.run("PREPARE put(int) AS INSERT INTO crate VALUES ($1) RETURNING id");
    assert_eq!(client.column("EXECUTE put(81)"), ["81"]);
    client.run("PREPARE pick AS SELECT id FROM crate WHERE id = $1");
    assert_eq!(client.column("EXECUTE pick(2)"), ["2"]);
    assert_eq!(client.run("EXPLAIN ANALYZE EXECUTE put(82)").tags(), ["EXPLAIN"]);
    client.run("CREATE TABLE crate_sel AS EXECUTE pick(3)");
    client.run("DEALLOCATE put");
    assert_eq!(client.try_query("EXECUTE put(83)").sqlstate().as_deref(), Some("26000"));
}

#[test]
fn case_041_a_read_only_transaction_is_a_read_as_a_whole() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    for begin in [
        "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        "BEGIN READ ONLY",
        "begin transaction read only",
    ] {
        assert_eq!(client.run(begin).status(), 'T');
        assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"]);
        assert_eq!(client.column("SHOW transaction_read_only"), ["on"]);
        assert_eq!(client.column("SELECT pg_is_in_recovery()"), ["t"], "{begin}");
        let refused = client.try_query("INSERT INTO crate VALUES (7)");
        assert_eq!((refused.sqlstate().as_deref(), refused.status()), (Some("25006"), 'E'));
        assert_eq!(client.run("COMMIT").tags(), ["ROLLBACK"]);
        assert_eq!(went(&mut client), Replica, "{begin}");
    }
    // In the extended protocol, all in one write, and a write behind it.
    let steps = [
        "BEGIN READ ONLY",
        "SELECT pg_is_in_recovery()",
        "COMMIT",
        "INSERT INTO crate VALUES (8) RETURNING id",
    ];
    client.send(&steps.map(batch).concat());
    let answers: Vec<_> = (0..4).map(|_| client.ready()).collect();
    assert_eq!((answers[1].column(), answers[3].column()), (vec!["t".to_owned()], vec!["8".to_owned()]));
    assert_eq!(went(&mut client), Primary);
    client.run("BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY");
    client.run("SELECT 1");
    client.run("COMMIT");
    assert_eq!(went(&mut client), Primary, "no standby takes it");
}

#[test]
fn case_043_case_055_other_transactions_are_the_primarys_to_their_end() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    client.run("BEGIN");
    client.run("SET transaction_read_only = 0");
    assert_eq!(client.run("INSERT INTO crate VALUES (8)").tags(), ["INSERT 0 1"]);
    assert_eq!(client.column("SELECT count(*) FROM crate WHERE id = 8"), ["1"]);
    client.run("COMMIT");
    client.run("BEGIN");
    client.run("SET TRANSACTION READ ONLY");
    assert_eq!(client.try_query("INSERT INTO crate VALUES (9)").sqlstate().as_deref(), Some("25006"));
    client.run("ROLLBACK");
    client.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    client.run("INSERT INTO crate VALUES (16)");
    assert_eq!(client.run("COMMIT AND CHAIN").status(), 'T');
    assert_eq!(client.column("SHOW transaction_isolation"), ["repeatable read"]);
    client.run("INSERT INTO crate VALUES (17)");
    assert_eq!(client.run("ROLLBACK AND CHAIN").status(), 'T');
    client.run("ROLLBACK");
    assert_eq!(split.database.direct().column("SELECT id FROM crate WHERE id IN (16, 17)"), ["16"]);
}

#[test]
fn case_045_a_session_may_be_read_only_and_nobody_else_with_it() {
    let split = Split::of(&CRATE, |config| config.pooling.max_server_connections = 1);
    let (mut client, mut other) = (split.client(), split.client());
    client.run("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY");
    assert_eq!(other.run("INSERT INTO crate VALUES (11)").tags(), ["INSERT 0 1"]);
    assert_eq!(client.try_query("INSERT INTO crate VALUES (12)").sqlstate().as_deref(), Some("25006"));
    client.run("SELECT count(*) FROM crate");
    client.run("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE");
    assert_eq!(client.run("INSERT INTO crate VALUES (13)").tags(), ["INSERT 0 1"]);
    client.run("SET default_transaction_isolation = 'serializable'");
    client.run("SELECT count(*) FROM crate");
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "isolation"));
}

#[test]
fn case_046_questions_about_the_server_are_answered_by_the_primary() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    for (sql, value) in [
        ("SHOW transaction_read_only", "off"),
        ("SELECT pg_catalog.pg_is_in_recovery()", "f"),
        ("SHOW in_hot_standby", "off"),
        ("show TRANSACTION ISOLATION LEVEL", "read committed"),
    ] {
        assert_eq!(client.column(sql), [value], "{sql}");
        assert_eq!(went(&mut client), Primary, "{sql}");
    }
}

#[test]
fn case_048_a_temporary_table_hides_a_table_for_its_session() {
    let split = Split::new(&["CREATE TABLE depot_tmp(a int)", "INSERT INTO depot_tmp VALUES (1), (2)"]);
    let mut client = split.client();
    assert_eq!(client.column("SELECT count(*) FROM depot_tmp"), ["2"]);
    client.run("DROP TABLE depot_tmp");
    client.run("CREATE TEMP TABLE depot_tmp(a int, b int)");
    assert_eq!(client.column("SELECT count(b) FROM depot_tmp"), ["0"]);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "pinned"));
}

#[test]
fn case_052_what_is_not_understood_is_the_primarys_to_answer() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    for (sql, code) in [
        ("SELEC id FROM crate", "42601"),
        ("INSERT INTO crate VALUES (14) RETURNING old.id", "42P01"),
        ("SELECT * FROM JSON_TABLE('[1]'::jsonb, '$[*]' COLUMNS (v int PATH '$')) jt", "42601"),
        ("SELECT 1 FROM crate WHERE id = :v", "42601"),
        ("COPY crate FROM STDIN WITH (ON_ERROR ignore)", "42601"),
    ] {
        assert_eq!(client.try_query(sql).sqlstate().as_deref(), Some(code), "{sql}");
        assert_eq!(went(&mut client), Primary, "{sql}");
    }
    let long = format!("SELECT '{}'", "x".repeat(70_000));
    client.run(&long);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "too_long"));
    let answer = client.ask(&[b"Q\0\0\0\x0fSELECT '", &b"\xff'\0"[..]].concat());
    assert_eq!(answer.sqlstate().as_deref(), Some("22021"), "not UTF-8: PostgreSQL's own error");
    assert_eq!(why(&mut client), "not_utf8");
}

#[test]
fn case_057_what_object_mappers_ask_at_their_start_is_read_on_a_replica() {
    let split = Split::new(&CRATE);
    check(
        &split,
        &[
            ("select pg_catalog.version()", Replica),
            ("select current_schema()", Replica),
            ("SELECT current_setting('server_version_num')::int >= 90000", Replica),
            (
                "SELECT t.oid, t.typname FROM pg_type t WHERE t.typname IN ('int4','jsonb') ORDER BY 2",
                Replica,
            ),
            (
                "SELECT has_table_privilege('crate','SELECT'), obj_description('crate'::regclass) IS NULL",
                Replica,
            ),
            (
                "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid) \
                 FROM pg_attribute a LEFT JOIN pg_attrdef d ON a.attrelid = d.adrelid AND a.attnum = d.adnum \
                 WHERE a.attrelid = 'crate'::regclass AND pg_table_is_visible(a.attrelid)",
                Replica,
            ),
            ("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'", Replica),
        ],
    );
}

#[test]
fn case_059_hints_are_comments_and_hold_for_one_statement() {
    let split = Split::new(&CRATE);
    check(
        &split,
        &[
            ("/* route: primary */ SELECT count(*) FROM crate", Primary),
            ("SELECT count(*) FROM crate", Replica),
            ("SELECT '/* route: primary */' FROM crate LIMIT 1", Replica),
            ("/*+ SeqScan(crate) */ SELECT count(*) FROM crate", Replica),
            ("/* route: replica */ UPDATE crate SET qty = 1 WHERE id = 1", Primary),
            ("/* pgdog_role: primary */ SELECT 1", Primary),
            ("SELECT pg_backend_pid() > 0 /* pgdog_role: replica */", Replica),
            ("/* pgdog_role: replica */ INSERT INTO crate VALUES (100) ON CONFLICT DO NOTHING", Primary),
        ],
    );
}

#[test]
fn case_060_a_session_with_its_own_connection_has_it_on_the_primary() {
    let split = Split::of(&CRATE, |config| {
        config.pooling.mode = PoolMode::Session;
        config.stage = Stage::Split;
    });
    let mut client = split.client();
    assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"]);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "session_mode"));
    client.run("CREATE SCHEMA ledger");
    client.run("SET search_path = ledger, public");
    client.run("CREATE TABLE entry(i int)");
    assert_eq!(client.column("SELECT count(*) FROM entry"), ["0"]);
    assert_eq!(client.column("SHOW search_path"), ["ledger, public"]);
}

#[test]
fn a_session_at_the_port_of_reads_has_its_own_connection_on_a_replica() {
    let port = free_port();
    let split = Split::of(&CRATE, |config| {
        config.pooling.mode = PoolMode::Session;
        config.process.read_only_listen = Some(local(port));
    });
    let mut client = Client::connect(&Login::new(port, "app", &split.database.name)).unwrap();
    assert_eq!(client.column("SELECT pg_is_in_recovery()"), ["t"]);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Replica, "session_mode"));
    let figures = split.proxy.get("/metrics").unwrap().body;
    assert!(figures.contains("routed_total{reason=\"session_mode\",target=\"replica\"}"), "{figures}");
    let is_primary = |line: &str| line.contains("routed_total{") && line.contains("target=\"primary\"");
    assert!(!figures.lines().any(is_primary), "{figures}");
}

#[test]
fn case_061_without_replicas_reads_use_the_primary() {
    let mut split = Split::new(&CRATE);
    split.proxy.change(|config| drop(config.servers.pop()));
    let mut client = split.client();
    assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"]);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "no_replica"));
    client.run("BEGIN READ ONLY");
    assert_eq!(client.column("SELECT 1"), ["1"]);
    client.run("COMMIT");
    client.run("SET application_name = 'depot'");
    // Or they fail, if the pool says so.
    split.proxy.change(|config| {
        config.split.when_no_replica = WhenNoReplica::Fail;
        config.pooling.checkout_timeout = pgrouting_contract::duration::DurationText::from_secs(1);
    });
    let refused = client.try_query("SELECT count(*) FROM crate");
    assert_eq!(refused.sqlstate().as_deref(), Some("57P03"), "{}", refused.error());
    assert_eq!(client.run("INSERT INTO crate VALUES (21)").tags(), ["INSERT 0 1"]);
}

#[test]
fn case_061_without_a_primary_reads_go_on() {
    let mut split = Split::new(&CRATE);
    split.proxy.change(|config| {
        config.servers.remove(0);
        config.pooling.checkout_timeout = pgrouting_contract::duration::DurationText::from_secs(1);
    });
    let mut client = split.client();
    assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"]);
    client.run("BEGIN READ ONLY");
    client.run("COMMIT");
    assert_eq!(client.try_query("INSERT INTO crate VALUES (22)").sqlstate().as_deref(), Some("57P03"));
    assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"], "the session goes on");
}

#[test]
fn case_087_a_batch_is_judged_as_a_whole() {
    let split =
        Split::new(&["CREATE TABLE parcel(id int)", "INSERT INTO parcel SELECT generate_series(1, 6)"]);
    let mut client = split.client();
    let step = |sql: &str| [parse("", sql), bind("", "", &[]), execute("", 0)].concat();
    let count = step("SELECT count(*) FROM parcel");
    let answer =
        client.ask(&[count.clone(), step("DELETE FROM parcel WHERE id = 6"), count, sync()].concat());
    assert_eq!(answer.column(), ["6", "5"]);
    assert_eq!(answer.tags(), ["SELECT 1", "DELETE 1", "SELECT 1"]);
    assert_eq!(went(&mut client), Primary);
}

#[test]
fn case_054_two_phase_commit_is_the_primarys() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    let refused = client.try_query("COMMIT PREPARED 'depot-1'");
    assert!(refused.sqlstate().is_some());
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "transaction"));
}

#[test]
fn case_245_a_dump_stays_on_one_connection() {
    let split = Split::of(&CRATE, |config| config.pooling.max_server_connections = 2);
    let mut client = split.client();
    client.run("SELECT pg_catalog.set_config('search_path', '', false);");
    client.run("SET statement_timeout = 0");
    client.run("BEGIN");
    client.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY");
    assert_eq!(client.column("SELECT pg_catalog.pg_is_in_recovery()"), ["f"]);
    let backend = client.backend();
    client.run("LOCK TABLE public.crate IN ACCESS SHARE MODE");
    client.run("PREPARE dump_cols(pg_catalog.oid) AS SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = $1 AND attnum > 0 ORDER BY attnum");
    assert_eq!(
        client.column("EXECUTE dump_cols('public.crate'::pg_catalog.regclass)"),
        ["id", "note", "qty"]
    );
    assert_eq!(client.run("COPY public.crate (id, note, qty) TO stdout").tags(), ["COPY 5"]);
    assert_eq!(client.backend(), backend);
    client.run("COMMIT");
    assert_eq!(client.column("SELECT count(*) FROM public.crate"), ["5"]);
}

#[test]
fn case_246_settings_of_a_read_only_transaction_are_its_own() {
    let split = Split::of(&CRATE, |config| config.pooling.max_server_connections = 1);
    split.database.direct().run("GRANT SELECT ON crate TO app_b");
    let mut admin = split.database.admin();
    admin.run("GRANT app_b TO app");
    split.settle();
    let mut client = split.client();
    let run = |client: &mut Client, name: &str, sql: &str, parameters: &[Option<&str>]| {
        client.ask(&[parse(name, sql), bind("", name, parameters), execute("", 0), sync()].concat())
    };
    assert_eq!(run(&mut client, "b", "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY", &[]).status(), 'T');
    let context = "select set_config('search_path', $1, true), set_config('role', $2, true)";
    run(&mut client, "ctx", context, &[Some("public"), Some("app_b")]);
    let sql = "WITH gw_source AS (SELECT crate.* FROM public.crate WHERE id <= $1::int) \
               SELECT count(*), pg_is_in_recovery(), current_user::text FROM gw_source";
    let row = run(&mut client, "qry", sql, &[Some("2")]).rows().remove(0);
    assert_eq!(row, [Some("2".to_owned()), Some("t".to_owned()), Some("app_b".to_owned())]);
    assert_eq!(run(&mut client, "c", "COMMIT", &[]).status(), 'I');
    assert_eq!(client.column("SELECT current_user"), ["app"]);
    admin.run("REVOKE app_b FROM app");
}

#[test]
fn a_statement_keeps_its_own_class_whatever_was_prepared_since() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    let reads = [parse("read", "SELECT count(*) FROM crate"), sync()].concat();
    let writes = [parse("write", "INSERT INTO crate VALUES ($1) RETURNING id"), sync()].concat();
    client.ask(&reads);
    client.ask(&writes);
    let execute_read = [bind("", "read", &[]), execute("", 0), sync()].concat();
    client.ask(&execute_read);
    assert_eq!(went(&mut client), Replica);
    let write = [bind("", "write", &[Some("200")]), execute("", 0), sync()].concat();
    assert_eq!(client.ask(&write).column(), ["200"]);
    assert_eq!(went(&mut client), Primary);
    client.ask(&execute_read);
    assert_eq!(went(&mut client), Replica);
}

#[test]
fn what_a_flush_prepared_on_a_replica_can_run_on_the_primary() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    // As asyncpg does: prepare, look, and then run it, or something else.
    client.send(&[parse("r", "SELECT count(*) FROM crate"), describe('S', "r"), flush()].concat());
    client.until('T');
    let answer = client.ask(&[bind("", "r", &[]), execute("", 0), sync()].concat());
    assert_eq!(answer.column(), ["5"]);
    assert_eq!(went(&mut client), Replica);
    client.send(&[parse("s", "SELECT max(id) FROM crate"), describe('S', "s"), flush()].concat());
    client.until('T');
    let write =
        [parse("w", "INSERT INTO crate VALUES (300)"), bind("", "w", &[]), execute("", 0), sync()].concat();
    assert_eq!(client.ask(&write).tags(), ["INSERT 0 1"]);
    assert_eq!(went(&mut client), Primary);
    split.settle();
    let answer = client.ask(&[bind("", "s", &[]), execute("", 0), sync()].concat());
    assert_eq!(answer.column(), ["300"]);
    // An error before the Sync is the client's own.
    client.send(&[parse("x", "SELECT nothing FROM crate"), flush()].concat());
    client.until('E');
    assert_eq!(client.ask(&sync()).status(), 'I');
    assert_eq!(client.ask(&[close('S', "s"), sync()].concat()).types(), "3Z");
}

#[test]
fn commands_are_answered_in_both_protocols() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    assert_eq!(client.run("SET SERVER ROLE TO 'primary'").tags(), ["SET SERVER ROLE"]);
    client.run("SELECT count(*) FROM crate");
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "role"));
    assert_eq!(client.column("SHOW SERVER ROLE"), ["primary"]);
    client.run("SET SERVER ROLE TO 'replica'");
    client.run("SELECT pg_backend_pid()");
    assert_eq!(went(&mut client), Replica, "who asks for it gets it");
    client.run("UPDATE crate SET qty = 1");
    assert_eq!(went(&mut client), Primary, "but not for what is known to write");
    client.run("SET SERVER ROLE TO 'default'");
    assert_eq!(client.column("SHOW SERVER ROLE"), ["auto"]);
    client.run("SET PRIMARY READS TO on");
    assert_eq!(client.column("SHOW PRIMARY READS"), ["on"]);
    client.run("SET PRIMARY READS TO default");
    assert_eq!(client.column("SHOW PRIMARY READS"), ["off"]);
    assert_eq!(client.run("SET SHARD TO '0'").tags(), ["SET SHARD"]);
    assert_eq!(client.column("SHOW SHARD"), ["0"]);
    assert_eq!(client.try_query("SET SHARD TO '1'").sqlstate().as_deref(), Some("22023"));
    assert_eq!(client.try_query("SET SERVER ROLE TO 'elsewhere'").sqlstate().as_deref(), Some("22023"));

    let answer = extended(&mut client, "SET SERVER ROLE TO 'primary'");
    assert_eq!((answer.types().as_str(), answer.tags()), ("12nCZ", vec!["SET SERVER ROLE".to_owned()]));
    client.ask(&[parse("c", "SHOW SERVER ROLE"), describe('S', "c"), sync()].concat());
    let answer = client.ask(&[bind("", "c", &[]), execute("", 0), sync()].concat());
    assert_eq!(answer.column(), ["primary"]);
    assert_eq!(client.ask(&[close('S', "c"), sync()].concat()).types(), "3Z");
    let answer = client
        .ask(&[parse("", "SET SERVER ROLE TO 'x'"), bind("", "", &[]), execute("", 0), sync()].concat());
    assert_eq!((answer.sqlstate().as_deref(), answer.status()), (Some("22023"), 'I'));
    client.run("SET SERVER ROLE TO 'auto'");
    // In the middle of things.
    client.run("BEGIN");
    assert_eq!(client.run("SHOW SERVER ROLE").status(), 'T');
    client.run("ROLLBACK");
    client.run("CREATE TEMP TABLE mine(i int)");
    assert_eq!(client.column("SHOW SERVER ROLE"), ["auto"], "pinned");
    client.send(&[query("SELECT 1"), query("SHOW SERVER ROLE"), query("SELECT 2")].concat());
    let columns: Vec<_> = (0..3).map(|_| client.ready().column()).collect();
    assert_eq!(columns, [["1"], ["auto"], ["2"]]);
}

#[test]
fn roles_can_be_asked_for_by_settings_users_and_ports() {
    let split = Split::of(&CRATE, |config| config.split.primary_users = vec!["app_b".to_owned()]);
    let login = split.proxy.login(&split.database);
    let mut client = Client::connect(&login.with("options", "-c pgdog.role=primary")).unwrap();
    client.run("SELECT 1");
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "role"));
    client.run("RESET pgdog.role");
    client.run("SET pgrouting.role TO auto");
    client.run("SELECT 1");
    assert_eq!(went(&mut client), Replica);
    let login = Login::new(split.proxy.port, "app_b", &split.database.name);
    let mut other = Client::connect(&login).unwrap();
    other.run("SELECT 1");
    assert_eq!((went(&mut other), why(&mut other).as_str()), (Primary, "user"));
}

#[test]
fn a_share_of_the_sessions_is_split() {
    let mut split = Split::new(&CRATE);
    let mut clients: Vec<_> = (0..40).map(|_| split.client()).collect();
    let mut before: Vec<usize> = Vec::new();
    for percent in [0, 30, 60, 100] {
        split.proxy.change(|config| config.split.percent = percent);
        let mut there = Vec::new();
        for (index, client) in clients.iter_mut().enumerate() {
            client.run("SELECT 1");
            if went(client) == Replica {
                there.push(index);
            }
            client.run("SELECT 2");
            assert_eq!(went(client) == Replica, there.contains(&index), "a session is in or out");
        }
        assert!(before.iter().all(|index| there.contains(index)), "whoever is in stays in");
        match percent {
            0 => assert!(there.is_empty()),
            100 => assert_eq!(there.len(), clients.len()),
            _ => assert!(!there.is_empty() && there.len() < clients.len(), "{percent}: {}", there.len()),
        }
        before = there;
    }
}

#[test]
fn the_stage_goes_forth_and_back_at_once() {
    let mut split = Split::new(&CRATE);
    let mut client = split.client();
    for stage in [Stage::PoolingOnly, Stage::Split, Stage::PoolingOnly, Stage::Split] {
        split.proxy.change(|config| config.stage = stage);
        client.run("SELECT count(*) FROM crate");
        let expected = if stage == Stage::Split { Replica } else { Primary };
        assert_eq!(went(&mut client), expected, "{stage:?}");
    }
}

#[test]
fn a_session_sees_what_it_has_written() {
    let split = Split::with(
        &["CREATE TABLE counter(n int)", "INSERT INTO counter VALUES (0)"],
        SplitConfig::default(),
    );
    let mut client = split.client();
    let mut on_replica = 0;
    for n in 1..=300 {
        client.run(&format!("UPDATE counter SET n = {n}"));
        for _ in 0..3 {
            assert_eq!(client.column("SELECT n FROM counter"), [n.to_string()]);
            on_replica += usize::from(went(&mut client) == Replica);
        }
    }
    poll("reads to go to the replica again", || {
        client.run("SELECT n FROM counter");
        (went(&mut client) == Replica).then_some(())
    });
    assert!(on_replica < 900);
    let sites = split.proxy.report().split.reads_after_writes;
    assert!(sites.iter().any(|site| site.statement.contains("counter")), "{sites:?}");
}

#[test]
fn functions_views_and_policies_are_what_their_bodies_are() {
    let split = Split::new(&[
        CRATE[0],
        CRATE[1],
        CRATE[2],
        "CREATE FUNCTION reads() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM crate'",
        "CREATE FUNCTION reads_too() RETURNS bigint LANGUAGE plpgsql AS $$ DECLARE n bigint; BEGIN SELECT count(*) INTO n FROM crate; RETURN n; END $$",
        "CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'INSERT INTO crate VALUES (1000) ON CONFLICT DO NOTHING; SELECT 1'",
        "CREATE FUNCTION says_stable() RETURNS bigint STABLE LANGUAGE sql AS $$ SELECT nextval('ticket_no') $$",
        "CREATE FUNCTION says_stable_too() RETURNS bigint STABLE LANGUAGE plpgsql AS $$ BEGIN RETURN says_stable(); END $$",
        "CREATE VIEW counting AS SELECT says_stable() AS n",
        "CREATE VIEW plain AS SELECT id FROM crate",
        "CREATE FUNCTION odd_plus(int, int) RETURNS int LANGUAGE sql AS 'INSERT INTO crate VALUES (1001) ON CONFLICT DO NOTHING; SELECT 1'",
        "CREATE OPERATOR +!+ (LEFTARG = int, RIGHTARG = int, FUNCTION = odd_plus)",
        "CREATE TABLE guarded(a int)",
        "CREATE POLICY p ON guarded USING (says_stable() > 0)",
        "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY",
    ]);
    check(
        &split,
        &[
            ("SELECT reads()", Replica),
            ("SELECT reads_too()", Replica),
            ("SELECT writes()", Primary),
            ("SELECT says_stable()", Primary),
            ("SELECT says_stable_too()", Primary),
            ("SELECT * FROM counting", Primary),
            ("SELECT * FROM plain", Replica),
            ("SELECT 1 +!+ 2", Primary),
            ("SELECT a FROM guarded", Primary),
        ],
    );
}

#[test]
fn definitions_count_from_their_commit_on() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    let mut other = split.client();
    for (definition, to) in [
        ("CREATE FUNCTION f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM crate'", Replica),
        (
            "CREATE OR REPLACE FUNCTION f() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('ticket_no') $$",
            Primary,
        ),
        ("CREATE OR REPLACE FUNCTION f() RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'", Replica),
    ] {
        client.run(definition);
        // Never by what was known before, whoever asks.
        let answer = other.try_query("SELECT f()");
        assert_eq!(answer.sqlstate(), None, "{}", answer.error());
        split.settle();
        other.run("SELECT f()");
        assert_eq!(went(&mut other), to, "{definition}");
    }
    // What is defined past the proxy is found out, or the safety net catches it.
    let rescued = split.proxy.metric("pgrouting_proxy_rescued_total{cause=\"misroute\"}");
    split.database.direct().run(
        "CREATE OR REPLACE FUNCTION f() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('ticket_no') $$",
    );
    split.settle();
    assert_eq!(other.run("SELECT f()").sqlstate(), None);
    assert_eq!((went(&mut other), why(&mut other).as_str()), (Primary, "rescued"));
    assert_eq!(split.proxy.metric("pgrouting_proxy_rescued_total{cause=\"misroute\"}"), rescued + 1);
    assert_eq!(extended(&mut other, "SELECT f()").sqlstate(), None);
    assert_eq!(went(&mut other), Primary, "learnt, or known");
}

#[test]
fn what_a_replica_refuses_is_run_on_the_primary_once() {
    let split = Split::of(
        &[
            CRATE[0],
            CRATE[1],
            CRATE[2],
            "CREATE FUNCTION claims() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('ticket_no') $$",
        ],
        |config| config.split.read_functions = vec!["claims".to_owned()],
    );
    let mut client = split.client();
    let forms: [Vec<u8>; 3] = [
        query("SELECT claims()"),
        batch("SELECT claims() "),
        [parse("n", "SELECT claims()  "), bind("", "n", &[]), describe('P', ""), execute("", 0), sync()]
            .concat(),
    ];
    for (index, form) in forms.iter().enumerate() {
        let answer = client.ask(form);
        assert_eq!(answer.column(), [(index + 1).to_string()], "{index}: {}", answer.error());
    }
    // The statement is known to the primary too, by its name.
    let answer = client.ask(&[bind("", "n", &[]), execute("", 0), sync()].concat());
    assert_eq!(answer.column(), ["4"]);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "learned"));
    assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"]);
    assert_eq!(went(&mut client), Replica, "nothing else has changed");
}

#[test]
fn without_the_safety_net_the_client_is_told() {
    let split = Split::of(
        &[
            CRATE[2],
            "CREATE FUNCTION claims() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('ticket_no') $$",
        ],
        |config| {
            config.split.read_functions = vec!["claims".to_owned()];
            config.split.rescue = false;
        },
    );
    let mut client = split.client();
    assert_eq!(client.try_query("SELECT claims()").sqlstate().as_deref(), Some("25006"));
    assert_eq!(client.column("SELECT 1"), ["1"]);
}

#[test]
fn explain_route_says_where_and_why() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    let explain = |client: &mut Client, sql: &str, item: &str| {
        let answer = client.run(&format!("EXPLAIN ROUTE {sql}"));
        let rows = answer.rows();
        let row = rows.iter().find(|row| row[0].as_deref() == Some(item));
        row.and_then(|row| row[1].clone()).unwrap_or_default()
    };
    assert_eq!(explain(&mut client, "SELECT count(*) FROM crate", "target"), "replica");
    assert_eq!(explain(&mut client, "SELECT count(*) FROM crate", "server two"), "candidate");
    assert_eq!(
        explain(&mut client, "SELECT id, nextval('ticket_no') FROM crate", "reason"),
        "volatile_function"
    );
    assert_eq!(explain(&mut client, "SELECT id, nextval('ticket_no') FROM crate", "position"), "12");
    assert!(explain(&mut client, "SELECT id, nextval('ticket_no')", "near").starts_with("nextval("));
    assert_eq!(explain(&mut client, "DELETE FROM crate", "server two"), "dropped: not the primary");
    assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"], "nothing was run");
    // The same over the admin API.
    let ask = |sql: &str| {
        let body = serde_json::json!({"database": split.database.name, "statement": sql}).to_string();
        split.proxy.post_json("/route/explain", &body).json()
    };
    assert_eq!(ask("SELECT 1")["target"], "replica");
    let told = ask("SELECT nextval('ticket_no')");
    assert_eq!((&told["reason"], &told["position"]), (&"volatile_function".into(), &8.into()));
}

#[test]
fn at_the_first_stage_a_sample_is_judged_and_nothing_moves() {
    let split = Split::of(&CRATE, |config| config.stage = Stage::PoolingOnly);
    // Few sessions that are so short are looked at, by lot, and none before the catalog is known.
    let mut report = split.proxy.report().split;
    for session in 0..2000 {
        let has_enough = report.primary.get("stage").is_some_and(|count| *count >= 400);
        if has_enough && report.forecast.contains_key("read") {
            break;
        }
        let mut client = split.client();
        for _ in 0..4 {
            client.run("SELECT count(*) FROM crate");
            client.run("UPDATE crate SET qty = qty WHERE id = 1");
        }
        if session % 10 == 9 {
            report = split.proxy.report().split;
        }
    }
    assert!(report.forecast.get("read").is_some_and(|count| *count > 0), "{report:?}");
    assert!(report.replica.is_empty());
    assert!(report.primary.get("stage").is_some_and(|count| *count >= 400), "{report:?}");
}

#[test]
fn at_the_first_stage_each_long_session_is_looked_at_and_reads_alone_are_not_stale() {
    let split = Split::of(&CRATE, |config| config.stage = Stage::PoolingOnly);
    // The first that is looked at has the catalog read.
    let mut client = split.client();
    for _ in 0..1100 {
        client.run("SELECT count(*) FROM crate");
    }
    split.settle();
    let before = split.proxy.report().split;
    let mut client = split.client();
    for _ in 0..1100 {
        client.run("SELECT count(*) FROM crate");
    }
    let report = split.proxy.report().split;
    let reads = |report: &SplitReport| report.forecast.get("read").copied().unwrap_or(0);
    assert!(reads(&report) >= reads(&before) + 16, "{report:?}");
    assert_eq!(report.forecast_stale, before.forecast_stale, "{report:?}");
    for _ in 0..1100 {
        client.run("UPDATE crate SET qty = qty WHERE id = 1");
        client.run("SELECT count(*) FROM crate");
    }
    let report = split.proxy.report().split;
    assert!(report.forecast_stale > before.forecast_stale, "{report:?}");
}

fn lazy() -> Split {
    Split::of(&CRATE, |config| config.split.transactions = Transactions::ReadOnlyPrefix)
}

#[test]
fn a_transaction_may_begin_on_a_replica_and_move_before_it_writes() {
    let split = lazy();
    let mut client = split.client();
    assert_eq!(client.run("BEGIN").status(), 'T');
    assert_eq!(client.column("SELECT pg_catalog.count(*) FROM crate"), ["5"]);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Replica, "read"));
    let update = client.run("UPDATE crate SET qty = 77 WHERE id = 1");
    assert_eq!((update.tags(), update.status()), (vec!["UPDATE 1".to_owned()], 'T'));
    assert_eq!(went(&mut client), Primary);
    assert_eq!(client.column("SELECT qty FROM crate WHERE id = 1"), ["77"], "in its own transaction");
    assert_eq!(
        split.database.direct().column("SELECT qty FROM crate WHERE id = 1"),
        ["1"],
        "and nobody else's"
    );
    assert_eq!(client.run("COMMIT").status(), 'I');
    assert_eq!(split.database.direct().column("SELECT qty FROM crate WHERE id = 1"), ["77"]);
    // What only reads stays on the replica to its end.
    split.settle();
    client.run("START TRANSACTION");
    for _ in 0..3 {
        assert_eq!(client.column("SELECT qty FROM crate WHERE id = 1"), ["77"]);
    }
    assert_eq!(client.run("COMMIT").tags(), ["COMMIT"]);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Replica, "read"));
    // What begins with a write begins on the primary; what has no statement, nowhere.
    client.run("BEGIN");
    client.run("INSERT INTO crate VALUES (90)");
    assert_eq!(client.run("ROLLBACK").tags(), ["ROLLBACK"]);
    assert_eq!(went(&mut client), Primary);
    assert_eq!((client.run("BEGIN").status(), client.run("ROLLBACK").status()), ('T', 'I'));
    assert_eq!(split.database.direct().column("SELECT count(*) FROM crate WHERE id = 90"), ["0"]);
}

#[test]
fn a_transaction_moves_in_the_extended_protocol_too() {
    let split = lazy();
    let mut client = split.client();
    client.ask(&[parse("r", "SELECT qty FROM crate WHERE id = $1"), sync()].concat());
    let read = [bind("", "r", &[Some("2")]), execute("", 0), sync()].concat();
    // All in one write: begin, read, write, read, commit, and a read behind it.
    let all = [
        batch("BEGIN"),
        read.clone(),
        batch("UPDATE crate SET qty = 55 WHERE id = 2"),
        read.clone(),
        batch("COMMIT"),
        read,
    ];
    client.send(&all.concat());
    let answers: Vec<_> = (0..6).map(|_| client.ready()).collect();
    let statuses: String = answers.iter().map(Answer::status).collect();
    assert_eq!(statuses, "TTTTII");
    assert_eq!(answers[0].tags(), ["BEGIN"]);
    assert_eq!((answers[1].column(), answers[3].column()), (vec!["2".to_owned()], vec!["55".to_owned()]));
    assert_eq!(split.database.direct().column("SELECT qty FROM crate WHERE id = 2"), ["55"]);
}

#[test]
fn what_tells_its_transaction_does_not_move() {
    let split = lazy();
    let mut client = split.client();
    client.run("BEGIN");
    let began = client.column("SELECT now()");
    assert_eq!(went(&mut client), Primary);
    client.run("INSERT INTO crate VALUES (91)");
    assert_eq!(client.column("SELECT now()"), began);
    client.run("COMMIT");
    split.settle();
    // After a read on the replica the question moves the transaction, and its answer holds from then on.
    client.run("BEGIN");
    client.run("SELECT 1");
    assert_eq!(went(&mut client), Replica);
    let began = client.column("SELECT current_timestamp");
    assert_eq!(went(&mut client), Primary);
    assert_eq!(client.column("SELECT current_timestamp"), began);
    client.run("SAVEPOINT a");
    client.run("ROLLBACK TO a");
    client.run("COMMIT");
    // An error on the replica fails the transaction as anywhere.
    client.run("BEGIN");
    client.run("SELECT 1");
    assert_eq!(client.try_query("SELECT 1/0").status(), 'E');
    assert_eq!(client.try_query("INSERT INTO crate VALUES (92)").sqlstate().as_deref(), Some("25P02"));
    assert_eq!(client.run("COMMIT").tags(), ["ROLLBACK"]);
    assert_eq!(client.run("INSERT INTO crate VALUES (93)").status(), 'I');
    client.run("BEGIN ISOLATION LEVEL REPEATABLE READ");
    client.run("SELECT 1");
    client.run("COMMIT");
    assert_eq!(went(&mut client), Primary, "only READ COMMITTED");
}
