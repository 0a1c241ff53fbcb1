use proptest::prelude::*;

use super::*;
use crate::catalog::Named;
use crate::classify::functions::builtin;

/// Functions of the tests, with whether they are volatile.
const FUNCTIONS: [(&str, bool); 24] = [
    ("count", false),
    ("sum", false),
    ("lower", false),
    ("generate_series", false),
    ("nextval", true),
    ("setval", true),
    ("random", true),
    ("now", false),
    ("txid_current", false),
    ("pg_backend_pid", false),
    ("pg_advisory_lock", true),
    ("pg_notify", true),
    ("current_setting", false),
    ("substring", false),
    ("left", false),
    ("unnest", false),
    ("row_number", false),
    ("numeric", false),
    ("system", true),
    ("max", false),
    ("set_config", true),
    ("query_to_xml", true),
    ("lo_create", true),
    ("abs", false),
];

fn catalog() -> Catalog {
    let mut catalog = Catalog { epoch: 1, ..Catalog::default() };
    for (name, is_volatile) in FUNCTIONS {
        let function = Some(builtin(name, is_volatile));
        let is_attribute = matches!(name, "nextval" | "pg_advisory_lock" | "lo_create");
        catalog.names.insert(name.into(), Named { function, is_attribute, ..Named::default() });
    }
    for (name, class) in [
        ("scratch", RelationClass::Unlogged),
        ("far", RelationClass::Foreign),
        ("t_id_seq", RelationClass::Sequence),
        ("pg_locks", RelationClass::View),
    ] {
        catalog.names.insert(name.into(), Named { relation: Some(class), ..Named::default() });
    }
    catalog.names.insert("odd".into(), Named { is_unsafe_type: true, ..Named::default() });
    catalog.operators.push("<!>".into());
    catalog
}

fn verdict(sql: &str) -> Verdict {
    judge(sql.as_bytes(), &catalog()).verdict
}

#[test]
fn reads_are_proved() {
    for sql in [
        "SELECT 1",
        "select a, b from t where c = $1 order by d limit 10 offset 5",
        "/* insert */ SELECT count(*) FROM crate -- delete",
        "SELECT 1 /* /* */ ; DELETE FROM crate /* */ */ + 1",
        "SELECT 'x; DELETE FROM crate; --' AS \"for update\"",
        "SELECT count(*) AS nextval FROM crate WHERE note <> '/* insert'",
        "SELECT $a$ $b$ ; DROP TABLE crate; $b$ $a$ IS NOT NULL",
        "SELECT 1 AS \"a\"\"; INSERT INTO crate\"",
        "((SELECT 1) UNION ALL (SELECT 2))",
        "VALUES (1, 2), (3, 4)",
        "TABLE t",
        "WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a), b(x) AS NOT MATERIALIZED (SELECT 2) SELECT * FROM a, b",
        "SELECT * FROM generate_series(1, 3) AS g(n), unnest(ARRAY[1]) WITH ORDINALITY u(v, o)",
        "SELECT DISTINCT ON (a) lower(b) FROM t",
        "SELECT x::numeric(10,2), CAST(y AS varchar(3)), z::double precision, c::character varying(10) FROM t",
        "SELECT count(*) FILTER (WHERE a), row_number() OVER (PARTITION BY b ORDER BY c ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t",
        "SELECT a FROM t GROUP BY GROUPING SETS ((a), ROLLUP (b), CUBE (c)) HAVING sum(d) > 1",
        "SELECT EXTRACT(year FROM now()), substring(a FROM 1 FOR 2), left(a, 1), COALESCE(a, b), trim(both 'x' from a) FROM t",
        "SELECT a[1:2], (b).c, d.* FROM t d NATURAL JOIN (u CROSS JOIN v)",
        "SELECT * FROM t TABLESAMPLE system (10) REPEATABLE (1)",
        "SELECT update, t.delete AS insert, merge FROM t",
        "SELECT current_setting('app.user'), random() OPERATOR(pg_catalog.+) 1",
        "SELECT 1; SELECT 2;;",
        ";; SELECT 3 ;;",
        "EXPLAIN SELECT 1",
        "EXPLAIN (ANALYZE, BUFFERS) SELECT count(*) FROM t",
        "EXPLAIN ANALYZE VERBOSE SELECT 1",
        "EXPLAIN UPDATE t SET a = 1",
        "EXPLAIN (ANALYZE false, COSTS off) INSERT INTO t VALUES (1)",
        "EXPLAIN SELECT 1 FROM t FOR UPDATE",
        "EXPLAIN INSERT INTO t (a, b) VALUES (1, 2) ON CONFLICT (a) DO UPDATE SET b = excluded.b",
        "SELECT interval '1 2:03' day to second(2)",
        "COPY t TO STDOUT",
        "COPY s.t (a, b) TO STDOUT WITH (FORMAT csv)",
        "COPY (SELECT id FROM crate WHERE id=2) TO STDOUT",
        "",
        "-- ping",
        "/* ping */ ;",
        "SELECT '\\'",
    ] {
        assert_eq!(verdict(sql), Verdict::Read, "{sql}");
    }
}

#[test]
fn read_only_transactions_are_told_from_others() {
    for (sql, is_one) in [
        ("BEGIN READ ONLY", true),
        ("begin transaction isolation level repeatable read, read only;", true),
        ("START TRANSACTION READ WRITE READ ONLY, NOT DEFERRABLE", true),
        ("/* x */ BEGIN WORK READ ONLY", true),
        ("BEGIN", false),
        ("BEGIN READ ONLY READ WRITE", false),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE, READ ONLY", false),
        ("BEGIN READ ONLY; SELECT 1", false),
        ("START READ ONLY", false),
    ] {
        let expected = if is_one { Verdict::ReadOnlyBlock } else { verdict(sql) };
        assert_eq!((verdict(sql), verdict(sql) == Verdict::ReadOnlyBlock), (expected, is_one), "{sql}");
    }
}

#[test]
fn every_reason_is_found() {
    for (sql, reason) in [
        ("INSERT INTO t VALUES (1)", Reason::Write),
        ("SELECT 1; DELETE FROM t", Reason::Write),
        ("WITH d AS (DELETE FROM t RETURNING 1) SELECT * FROM d", Reason::Write),
        (
            "WITH\n/*k*/d/*k*/AS/*k*/(--\nDELETE--x\nFROM crate WHERE id=5 RETURNING 1)SELECT*FROM d",
            Reason::Write,
        ),
        ("WITH a AS (SELECT 1) UPDATE t SET b = 2", Reason::Write),
        ("WITH a AS (SELECT 1) MERGE INTO t USING a ON true WHEN MATCHED THEN DELETE", Reason::Write),
        ("/*/**/SELECT*/ UPDATE crate SET qty = 100", Reason::Write),
        ("EXPLAIN (COSTS off, ANALYZE) DELETE FROM t", Reason::Write),
        ("COPY (INSERT INTO t VALUES (1) RETURNING 1) TO STDOUT", Reason::Write),
        ("SELECT 1 FROM t FOR NO KEY UPDATE SKIP LOCKED", Reason::Locking),
        ("SELECT (SELECT id FROM t FOR SHARE)", Reason::Locking),
        ("LOCK TABLE t", Reason::Locking),
        ("SELECT a INTO b FROM c", Reason::SelectInto),
        ("CREATE TABLE a AS SELECT 1", Reason::Ddl),
        ("REFRESH MATERIALIZED VIEW m", Reason::Ddl),
        ("SET a = 1", Reason::SessionState),
        ("LISTEN x", Reason::SessionState),
        ("BEGIN; SELECT 1", Reason::Transaction),
        ("PREPARE TRANSACTION 'x'", Reason::Transaction),
        ("FETCH 1 FROM c", Reason::Cursor),
        ("EXECUTE p", Reason::Prepared),
        ("DO $$BEGIN END$$", Reason::Procedure),
        ("CALL p()", Reason::Procedure),
        ("COPY t FROM STDIN", Reason::Copy),
        ("COPY t TO PROGRAM 'x'", Reason::Copy),
        ("COPY (SELECT 1) TO '/tmp/x'", Reason::Copy),
        ("EXPLAIN EXECUTE p", Reason::Explain),
        ("SELECT nextval('s')", Reason::VolatileFunction),
        ("SELECT pg_catalog.\"nextval\" /* gap */ ('s')", Reason::VolatileFunction),
        ("SELECT U&\"n\\0065xtval\"('s')", Reason::VolatileFunction),
        ("SELECT (1).nextval", Reason::VolatileFunction),
        ("SELECT txid_current()", Reason::VolatileFunction),
        ("EXPLAIN (ANALYZE 1) SELECT nextval('s')", Reason::VolatileFunction),
        ("SELECT 1 AS a$x$, nextval('s') AS b$x$", Reason::VolatileFunction),
        ("SELECT nobody_knows(1)", Reason::UnknownFunction),
        ("SELECT DISTINCT ON (a) nobody_knows(b) FROM t", Reason::UnknownFunction),
        ("SELECT * FROM t, nobody_knows(a) AS (b int)", Reason::UnknownFunction),
        ("SELECT * FROM JSON_TABLE('[1]', '$[*]' COLUMNS (v int PATH '$')) jt", Reason::UnknownFunction),
        ("SELECT pg_backend_pid()", Reason::ServerState),
        ("SHOW x", Reason::ServerState),
        ("SELECT current_setting('transaction_read_only')", Reason::ServerState),
        ("SELECT current_setting($1)", Reason::ServerState),
        ("SELECT v FROM scratch", Reason::UnloggedTable),
        ("COPY \"scratch\" TO STDOUT", Reason::UnloggedTable),
        ("SELECT v FROM public.far", Reason::ForeignTable),
        ("SELECT last_value FROM t_id_seq", Reason::Sequence),
        ("SELECT * FROM pg_locks", Reason::View),
        ("SELECT a <!> b", Reason::Operator),
        ("SELECT a <!>- b", Reason::Operator),
        ("SELECT 'x'::odd", Reason::Type),
        ("SELEC 1", Reason::Unparsed),
        ("SELECT 1 FROM crate WHERE id = :v", Reason::Unparsed),
        ("SELECT (1", Reason::Unparsed),
        ("SELECT 1)", Reason::Unparsed),
    ] {
        assert_eq!(verdict(sql), Verdict::Primary(reason), "{sql}");
    }
    assert_eq!(judge(b"SELECT '\xff'", &catalog()).verdict, Verdict::Primary(Reason::NotUtf8));
    let long = format!("SELECT '{}'", "x".repeat(TEXT_MAX));
    assert_eq!(verdict(&long), Verdict::Primary(Reason::TooLong));
}

#[test]
fn both_meanings_of_a_backslash_have_to_be_reads() {
    assert_eq!(verdict(r"SELECT '\', nextval('ticket_no') --'"), Verdict::Primary(Reason::VolatileFunction));
    assert_eq!(
        verdict(r"SELECT '\'', nextval(''ticket_no'') --'"),
        Verdict::Primary(Reason::VolatileFunction)
    );
}

#[test]
fn the_place_of_the_decision_is_told() {
    let sql = "SELECT a, nextval('s')";
    assert_eq!(judge(sql.as_bytes(), &catalog()).at, sql.find("nextval").unwrap());
}

#[test]
fn deep_expressions_do_no_harm() {
    let many = vec!["a = 1"; 20_000].join(" OR ");
    for sql in [
        format!("SELECT {}1{}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("SELECT 1 WHERE {many}"),
        format!("SELECT {}1", "- ".repeat(480)),
        format!("SELECT 1 WHERE {}", vec!["a = 1"; 240].join(" OR ")),
        format!("SELECT {}", vec!["1"; 450].join(" + ")),
    ] {
        let _ = verdict(&sql);
    }
}

proptest! {
    #[test]
    fn random_text_never_panics(
        sql in "(select|with|as|for|update|into|explain|copy|to|stdout|nextval|[$'\"(),;:.\\[\\]a1]| |\\PC){0,60}"
    ) {
        let _ = verdict(&sql);
    }

    #[test]
    fn what_calls_nextval_is_never_a_read(
        before in "[ (a,1'\"+]{0,8}", after in "[ )b,2'\"]{0,8}"
    ) {
        let sql = format!("SELECT {before} nextval('s') {after}");
        // Only where it stands in a string or a name is it no call.
        let is_called = pieces(&sql, false).pieces.windows(2).any(|pair| {
            pair[0].item == Item::Word("nextval".into()) && pair[1].item == Item::Symbol(b'(')
        });
        if is_called {
            prop_assert_ne!(verdict(&sql), Verdict::Read);
        }
    }
}
