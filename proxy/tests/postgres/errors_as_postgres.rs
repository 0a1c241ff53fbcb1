//! Errors in the extended protocol, and all that they skip, are as PostgreSQL has them.

use super::support::message::{
    bind, close, describe, execute, flush, message, parse, query, run, sync, unnamed,
};
use super::support::same::{Script, Stage};

#[test]
fn an_error_skips_to_the_next_sync() {
    let mut stage = Stage::new();
    for script in [
        Script::new("at parse")
            .synced([parse("a", "SELECT nope"), parse("b", "SELECT 1"), run("b"), close('S', "b")].concat())
            .synced(run("b")),
        Script::new("at bind")
            .synced([parse("a", "SELECT $1::int"), bind("", "a", &[Some("x")]), execute("", 0)].concat())
            .synced([bind("", "a", &[Some("1")]), execute("", 0)].concat()),
        Script::new("with definitions and closes before it")
            .synced(parse("a", "SELECT 1"))
            .synced([close('S', "a"), parse("b", "SELECT 2"), bind("", "none", &[])].concat())
            .synced(run("b"))
            .synced(run("a")),
        Script::new("a simple query is skipped too")
            .ask([bind("", "none", &[]), query("SELECT 1"), sync()].concat())
            .query("SELECT 2"),
        Script::new("at execute")
            .synced([parse("a", "SELECT 1/(id-1) FROM item"), run("a"), parse("b", "SELECT 1")].concat())
            .synced(run("b"))
            .synced(run("a")),
        Script::new("in the middle, with definitions and closes behind it")
            .synced([parse("a", "SELECT 1"), parse("b", "SELECT 2")].concat())
            .synced(
                [run("a"), bind("", "none", &[]), close('S', "a"), parse("c", "SELECT 3"), close('S', "b")]
                    .concat(),
            )
            .synced(run("a"))
            .synced(run("b"))
            .synced(run("c")),
        Script::new("a flush shows it before the sync")
            .count(1, [bind("", "none", &[]), flush()].concat())
            .send([parse("a", "SELECT 1"), flush()].concat())
            .ask(sync())
            .synced(run("a")),
    ] {
        stage.check(&script);
    }
}

#[test]
fn case_067_a_failed_parse_ends_the_unnamed_statement() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("unnamed")
            .synced(unnamed("SELECT label FROM item WHERE id = 1"))
            .synced(parse("", "SELECT nope FROM item"))
            .synced(run("")),
    );
}

#[test]
fn case_069_a_description_of_nothing_ends_only_its_batch() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("ghost")
            .synced([describe('S', "ghost"), unnamed("SELECT 1")].concat())
            .synced(unnamed("SELECT 2"))
            .synced([describe('P', "ghost"), unnamed("SELECT 1")].concat())
            .synced(describe('S', "")),
    );
}

#[test]
fn case_084_an_error_in_a_transaction_is_delivered_without_a_sync() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("no sync yet")
            .query("BEGIN; SAVEPOINT s")
            .until('E', unnamed("SELECT 1/(1-1)"))
            .ask(sync())
            .query("ROLLBACK TO s")
            .until('E', parse("a", "SELECT nope"))
            .ask(sync())
            .query("ROLLBACK"),
    );
}

#[test]
fn case_085_nothing_of_a_failed_batch_remains() {
    let mut stage = Stage::new();
    let insert = |id| unnamed(&format!("INSERT INTO item VALUES ({id})"));
    stage.check(
        &Script::new("a failed batch")
            .synced([insert(10), insert(11), unnamed("SELECT 1/0"), insert(12)].concat())
            .synced(insert(13))
            .query("SELECT id FROM item WHERE id > 6"),
    );
}

#[test]
fn case_092_statements_survive_a_rollback() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("rollback")
            .query("BEGIN")
            .synced(parse("a", "SELECT label FROM item WHERE id = 2"))
            .query("ROLLBACK")
            .synced(run("a"))
            .query("BEGIN; SAVEPOINT s")
            .synced(parse("b", "SELECT 2"))
            .query("ROLLBACK TO s; COMMIT")
            .synced(run("b")),
    );
}

#[test]
fn case_104_errors_show_the_clients_names() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("names")
            .synced(run("no_such"))
            .synced(parse("a", "SELECT 1"))
            .synced(parse("a", "SELECT 1"))
            .synced(parse("a", "SELECT 2"))
            .synced(run("a"))
            .query("SELECT name LIKE '%pgrouting%' FROM pg_prepared_statements WHERE false"),
    );
}

#[test]
fn batches_behind_a_failed_one_in_the_same_write_count() {
    let mut stage = Stage::new();
    for script in [
        Script::new("the same name, first wrong, then right")
            .ask_times(2, [parse("a", "SELECT nope"), sync(), parse("a", "SELECT 2"), sync()].concat())
            .synced(run("a")),
        Script::new("a close that was skipped, then a close and a definition")
            .synced(parse("a", "SELECT 1"))
            .ask_times(
                2,
                [
                    bind("", "none", &[]),
                    close('S', "a"),
                    sync(),
                    close('S', "a"),
                    parse("a", "SELECT 2"),
                    sync(),
                ]
                .concat(),
            )
            .synced(run("a")),
        Script::new("a definition that was skipped, then the same name")
            .ask_times(
                2,
                [bind("", "none", &[]), parse("a", "SELECT 1"), sync(), parse("a", "SELECT 2"), sync()]
                    .concat(),
            )
            .synced(run("a")),
        Script::new("the unnamed statement, skipped, then defined").ask_times(
            3,
            [
                bind("", "none", &[]),
                parse("", "SELECT 1"),
                sync(),
                parse("", "SELECT 2"),
                sync(),
                run(""),
                sync(),
            ]
            .concat(),
        ),
        Script::new("a simple query that was skipped leaves the unnamed statement")
            .synced(parse("", "SELECT 1"))
            .ask_times(2, [bind("", "none", &[]), query("SELECT 0"), sync(), run(""), sync()].concat())
            .synced(run("")),
        Script::new("a transaction that fails in the same write")
            .synced(parse("a", "SELECT 1"))
            .ask_times(
                5,
                [
                    query("BEGIN"),
                    query("SELECT 1/0"),
                    parse("b", "SELECT 1"),
                    sync(),
                    run("b"),
                    sync(),
                    query("ROLLBACK"),
                ]
                .concat(),
            )
            .synced(run("b"))
            .synced(run("a")),
    ] {
        stage.check(&script);
    }
}

#[test]
fn case_066_a_definition_that_failed_leaves_nothing() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("failed definition")
            .synced(parse("a", "SELECT missing FROM item"))
            .synced(run("a"))
            .synced(close('S', "a"))
            .synced([parse("a", "SELECT label FROM item WHERE id = 1"), run("a")].concat()),
    );
}

#[test]
fn case_093_errors_of_bind_leave_the_statement() {
    let mut stage = Stage::new();
    let add = |values: &[Option<&str>]| [bind("", "a", values), execute("", 0)].concat();
    stage.check(
        &Script::new("bind")
            .synced(parse("a", "SELECT $1::int4 + $2::int4"))
            .synced(add(&[Some("1")]))
            .synced(add(&[Some("1"), Some("x")]))
            .synced(add(&[Some("1"), Some("2")]))
            .synced([bind("", "none", &[]), describe('P', ""), execute("", 0), close('S', "a")].concat())
            .query("SELECT 5")
            .synced(add(&[Some("4"), Some("5")])),
    );
}

#[test]
fn case_115_a_body_that_does_not_fit_is_an_error_like_any_other() {
    let mut stage = Stage::new();
    let nine_parameters = message(b'B', |body| body.extend_from_slice(b"\0a\0\0\0\0\x09"));
    let no_such_kind = message(b'D', |body| body.extend_from_slice(b"Z\0"));
    stage.check(
        &Script::new("bodies")
            .synced(parse("a", "SELECT $1::int4"))
            .synced(nine_parameters)
            .query("SELECT 2")
            .synced(no_such_kind)
            .query("SELECT 3"),
    );
}

#[test]
fn case_091_a_failed_transaction_refuses_statements_that_are_known() {
    let mut stage = Stage::new();
    let text = "SELECT label FROM item WHERE id = 1";
    stage.check(
        &Script::new("failed transaction")
            .placeless()
            .synced(parse("a", text))
            .query("BEGIN")
            .query("SELECT 1/0")
            .synced(parse("b", text))
            .synced(run("a"))
            .synced(close('S', "b"))
            .synced(describe('S', "a"))
            .synced(unnamed("ROLLBACK"))
            .synced(run("a"))
            .synced(run("b")),
    );
}
