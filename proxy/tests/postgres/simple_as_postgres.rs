//! Simple queries and function calls are answered byte for byte as PostgreSQL answers them.

use super::support::client::Client;
use super::support::message::{function_call, message, query};
use super::support::same::{Script, Stage};

#[test]
fn simple_queries_are_answered_as_by_postgres() {
    let mut stage = Stage::new();
    for script in [
        Script::new("one row").query("SELECT 1"),
        Script::new("rows with NULLs").query("SELECT n, NULLIF(n, 2), '' FROM generate_series(1, 3) n"),
        Script::new("several statements").query("SELECT 1; SELECT 2 AS two; SELECT WHERE false; SELECT 3"),
        Script::new("nothing at all").query("").query(" ").query(";").query("-- only a comment"),
        Script::new("no row").query("SELECT id FROM item WHERE false"),
        Script::new("changes")
            .query("INSERT INTO item VALUES (7, 'seven')")
            .query("UPDATE item SET label = 'x' WHERE id > 4")
            .query("DELETE FROM item WHERE id = 7 RETURNING *"),
        Script::new("a notice").query("SELECT warn('me')").query("DO $$BEGIN RAISE WARNING 'careful'; END$$"),
        Script::new("a transaction")
            .query("BEGIN")
            .query("INSERT INTO item VALUES (8, NULL)")
            .query("SELECT count(*) FROM item")
            .query("ROLLBACK")
            .query("SELECT count(*) FROM item"),
        Script::new("a failed transaction")
            .query("BEGIN")
            .query("SELECT 1/0")
            .query("SELECT 1")
            .query("COMMIT")
            .query("SELECT 1"),
        Script::new("savepoints")
            .query("BEGIN; SAVEPOINT s; SELECT 1/0")
            .query("ROLLBACK TO s; SELECT 2")
            .query("COMMIT"),
        Script::new("one transaction for several statements")
            .query("INSERT INTO item VALUES (9, 'nine'); SELECT 1/0")
            .query("SELECT count(*) FROM item"),
        Script::new("a transaction that begins in the middle")
            .query("SELECT 1; BEGIN; SELECT 2")
            .query("COMMIT; SELECT 3"),
        Script::new("many in one write")
            .ask_times(4, [query("SELECT 1"), query("SELECT nope"), query(""), query("SELECT 4")].concat()),
        Script::new("transaction after transaction in one write").ask_times(
            5,
            [
                query("BEGIN"),
                query("SELECT 1/0"),
                query("ROLLBACK"),
                query("BEGIN; SELECT 5"),
                query("COMMIT"),
            ]
            .concat(),
        ),
    ] {
        stage.check(&script);
    }
}

#[test]
fn case_164_warnings_for_odd_transaction_control_are_passed_on() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("odd transaction control")
            .query("ROLLBACK")
            .query("BEGIN")
            .query("BEGIN")
            .query("COMMIT")
            .query("COMMIT")
            .query("SAVEPOINT x")
            .query("RELEASE x"),
    );
}

#[test]
fn case_117_function_calls_are_answered_as_by_postgres() {
    let mut stage = Stage::new();
    // 1404 is pg_catalog.abs(int8) under another OID in some versions, so the OIDs are asked for.
    let mut admin = stage.database().admin();
    let mut oid =
        |name: &str| admin.value(&format!("SELECT '{name}'::regprocedure::oid")).unwrap().parse().unwrap();
    let abs = function_call(oid("abs(int4)"), &[&(-5_i32).to_be_bytes()]);
    let div = function_call(oid("int4div(int4,int4)"), &[&1_i32.to_be_bytes(), &0_i32.to_be_bytes()]);
    let unknown = function_call(999_999, &[]);
    stage.check(
        &Script::new("function calls")
            .ask(&abs)
            .query("SELECT 1")
            .ask(&unknown)
            .ask(&div)
            .query("BEGIN")
            .ask(&div)
            .ask(&abs)
            .query("ROLLBACK")
            .ask_times(3, [abs.clone(), unknown, abs].concat()),
    );
}

#[test]
fn case_132_all_fields_of_an_error_are_passed_on() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("errors with many fields")
            .query("INSERT INTO item VALUES (1, 'x')")
            .query("SELECT * FROM item WHERE labell = 1")
            .query(
                "DO $$BEGIN RAISE EXCEPTION 'boom' USING ERRCODE = 'P0077', DETAIL = 'd1', HINT = 'h1', \
                 COLUMN = 'c', CONSTRAINT = 'k', DATATYPE = 'y', TABLE = 't', SCHEMA = 's'; END$$",
            ),
    );
}

#[test]
fn case_249_an_error_after_some_rows_ends_the_result() {
    let mut stage = Stage::new();
    let sql = "SELECT 10 / (3 - n) FROM generate_series(1, 5) n";
    stage.check(
        &Script::new("an error in the middle")
            .query(sql)
            .query(&format!("COPY ({sql}) TO STDOUT"))
            .synced(super::support::message::unnamed(sql))
            .query("SELECT 1"),
    );
}

#[test]
fn case_248_bytes_that_are_not_utf_8_reach_the_server_as_they_are() {
    let mut stage = Stage::new();
    let latin = message(b'Q', |body| body.extend_from_slice(b"SELECT length('\xe9')\0"));
    let inner_nul = message(b'Q', |body| body.extend_from_slice(b"SELECT 1\0 2\0"));
    stage.check(&Script::new("bytes").ask(&latin).query("SELECT 1").ask(&inner_nul).query("SELECT 3"));
    for login in stage.logins() {
        let mut client = login.with("client_encoding", "LATIN1").connect();
        assert_eq!(client.ask(&latin).column(), ["1"]);
    }
}

#[test]
fn case_247_deeply_nested_text_is_the_servers_business() {
    let stage = Stage::new();
    let nested = |depth| format!("SELECT {}7{}", "(".repeat(depth), ")".repeat(depth));
    let chain = format!("SELECT false{}", " OR 1 = 2".repeat(1_000));
    for login in stage.logins() {
        let mut client = login.connect();
        assert_eq!(client.column(&nested(500)), ["7"]);
        assert_eq!(client.column(&chain), ["f"]);
        assert!(client.try_query(&nested(30_000)).sqlstate().is_some());
        assert_eq!(client.column("SELECT 2"), ["2"]);
    }
}

#[test]
fn a_login_is_told_what_postgres_tells() {
    let stage = Stage::new();
    let direct = |with: &[(&str, &str)]| greeting(stage.database().direct_login(), with);
    for with in [
        &[][..],
        &[("application_name", "tests"), ("DateStyle", "German, DMY"), ("TimeZone", "Asia/Tokyo")],
        &[("client_encoding", "LATIN1"), ("options", "-c IntervalStyle=iso_8601 -c geqo=off")],
    ] {
        let expected = direct(with);
        for login in stage.logins() {
            assert_eq!(greeting(login.clone(), with), expected, "the first");
            assert_eq!(greeting(login, with), expected, "a later one");
        }
    }
}

fn greeting(login: super::support::client::Login, with: &[(&str, &str)]) -> Vec<(String, String)> {
    let login = with.iter().fold(login, |login, (name, value)| login.with(name, value));
    let client: Client = login.connect();
    client.parameters
}
