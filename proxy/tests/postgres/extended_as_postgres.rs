//! The extended protocol is answered byte for byte as PostgreSQL answers it.

use super::support::message::{
    bind, bind_formatted, close, describe, execute, flush, parse, parse_typed, query, run, sync, unnamed,
};
use super::support::same::{Script, Stage};

#[test]
fn statements_and_portals_are_answered_as_by_postgres() {
    let mut stage = Stage::new();
    let lookup = "SELECT id, label FROM item WHERE id = $1";
    for script in [
        Script::new("unnamed").synced(unnamed("SELECT 1")),
        Script::new("unnamed, kept over syncs")
            .synced(parse("", lookup))
            .synced([bind("", "", &[Some("2")]), describe('P', ""), execute("", 0)].concat())
            .synced([bind("", "", &[None]), execute("", 0)].concat()),
        Script::new("named")
            .synced(parse("a", lookup))
            .synced([bind("", "a", &[Some("3")]), execute("", 0)].concat())
            .synced([bind("", "a", &[Some("99")]), execute("", 0)].concat()),
        Script::new("all in one batch").synced(
            [
                parse("a", lookup),
                describe('S', "a"),
                bind("", "a", &[Some("4")]),
                describe('P', ""),
                execute("", 0),
            ]
            .concat(),
        ),
        Script::new("empty statement").synced([unnamed(""), describe('S', "")].concat()),
        Script::new("only sync").ask(sync()).ask(sync()).ask_times(3, sync().repeat(3)),
        Script::new("named portal in a transaction")
            .query("BEGIN")
            .synced(
                [parse("a", "SELECT id FROM item ORDER BY id"), bind("p", "a", &[]), execute("p", 2)]
                    .concat(),
            )
            .synced([describe('P', "p"), execute("p", 2)].concat())
            .synced([execute("p", 9), close('P', "p")].concat())
            .synced(execute("p", 1))
            .query("ROLLBACK"),
        Script::new("closing")
            .synced([parse("a", lookup), close('S', "a"), close('S', "a"), close('P', "nothing")].concat())
            .synced([parse("a", "SELECT 2"), close('S', ""), run("a")].concat())
            .synced(close('S', "a"))
            .synced(run("a")),
        Script::new("closed and defined anew in one batch").synced(
            [parse("a", "SELECT 1"), run("a"), close('S', "a"), parse("a", "SELECT 2"), run("a")].concat(),
        ),
        Script::new("the same text under two names")
            .synced([parse("a", "SELECT 5"), parse("b", "SELECT 5"), close('S', "a")].concat())
            .synced(run("b"))
            .synced(run("a")),
    ] {
        stage.check(&script);
    }
}

#[test]
fn case_081_a_row_limit_suspends_the_portal() {
    let mut stage = Stage::new();
    let ids = "SELECT id FROM item ORDER BY id";
    stage.check(
        &Script::new("row limit")
            .query("BEGIN")
            .synced([parse("", ids), bind("p", "", &[]), execute("p", 4)].concat())
            .synced(execute("p", 2))
            .synced(execute("p", 2))
            .synced(close('P', "p"))
            .query("COMMIT"),
    );
    stage.check(&Script::new("row limit, outside").synced(
        [parse("", ids), bind("", "", &[]), execute("", 4), execute("", 1), execute("", 9)].concat(),
    ));
}

#[test]
fn case_083_a_flush_is_answered_at_once() {
    let mut stage = Stage::new();
    let lookup = "SELECT label FROM item WHERE id = $1";
    for name in ["", "a"] {
        stage.check(
            &Script::new("flush")
                .count(3, [parse(name, lookup), describe('S', name), flush()].concat())
                .count(3, [bind("", name, &[Some("5")]), execute("", 0), flush()].concat())
                .ask(sync())
                .query("SELECT 1"),
        );
    }
    stage.check(&Script::new("flush alone").send(flush()).query("SELECT 1").send(flush()).ask(sync()));
}

#[test]
fn case_086_several_batches_in_one_write_are_answered_in_order() {
    let mut stage = Stage::new();
    let insert = |id| [unnamed(&format!("INSERT INTO item VALUES ({id})")), sync()].concat();
    stage.check(
        &Script::new("three batches")
            .ask_times(3, [insert(10), insert(10), insert(11)].concat())
            .query("SELECT id FROM item ORDER BY id"),
    );
}

#[test]
fn case_106_simple_and_extended_in_one_write_stay_in_step() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("mixed, with a setting")
            .ask_times(
                2,
                [
                    query("SET statement_timeout = 30000"),
                    parse("", "SELECT current_setting('statement_timeout')"),
                    describe('S', ""),
                    run(""),
                    sync(),
                ]
                .concat(),
            )
            .ask_times(2, [query("DISCARD ALL"), unnamed("SELECT 8"), sync()].concat())
            .pinning(),
    );
    stage.check(
        &Script::new("mixed")
            .ask_times(3, [query("SELECT 1"), unnamed("SELECT 2"), sync(), query("SELECT 3")].concat())
            .ask_times(2, [parse("a", "SELECT 4"), sync(), query("SELECT 5")].concat())
            .synced(run("a")),
    );
}

#[test]
fn case_097_a_statement_without_rows_is_described_as_such() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("no data")
            .query("BEGIN")
            .synced([parse("a", "INSERT INTO item VALUES ($1, $2)"), describe('S', "a")].concat())
            .synced(
                [parse("b", "INSERT INTO item VALUES ($1, $2) RETURNING id"), describe('S', "b")].concat(),
            )
            .query("ROLLBACK"),
    );
}

#[test]
fn case_100_formats_belong_to_their_columns() {
    let mut stage = Stage::new();
    let int = 42_i32.to_be_bytes();
    let long = 1_i64.to_be_bytes();
    let first =
        bind_formatted("", "a", &[1, 0, 1, 0], &[Some(&int), Some(b""), Some(&long), None], &[1, 0, 1, 0]);
    let second = bind_formatted("", "a", &[], &[Some(b"42"), Some(b"z"), Some(b"1"), None], &[0]);
    let third = bind_formatted("", "a", &[1], &[Some(&int), Some(b"q"), Some(&long), Some(b"r")], &[1]);
    let rest = [describe('P', ""), execute("", 0)].concat();
    stage.check(
        &Script::new("formats")
            .synced(parse("a", "SELECT $1::int4, $2::text, $3::int8, $4::text"))
            .synced([first, rest.clone()].concat())
            .synced([second, rest.clone()].concat())
            .synced([third, rest].concat()),
    );
}

#[test]
fn case_078_types_belong_to_the_statement() {
    let mut stage = Stage::new();
    let text = "SELECT pg_typeof($1)::text, $1";
    let long = 9_i64.to_be_bytes();
    stage.check(
        &Script::new("types")
            .synced([parse_typed("a", text, &[23]), describe('S', "a")].concat())
            .synced([parse_typed("b", text, &[25]), describe('S', "b")].concat())
            .synced([bind("", "a", &[Some("7")]), execute("", 0)].concat())
            .synced([bind("", "b", &[Some("7x")]), execute("", 0)].concat())
            .synced(
                [
                    parse_typed("c", text, &[20]),
                    bind_formatted("", "c", &[1], &[Some(&long)], &[]),
                    execute("", 0),
                ]
                .concat(),
            ),
    );
}

#[test]
fn case_089_begin_through_the_extended_protocol_is_a_statement_like_any_other() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("begin")
            .synced(
                [
                    unnamed("BEGIN"),
                    parse_typed("", "SELECT id, label FROM item WHERE id = $1", &[23]),
                    bind("", "", &[Some("1")]),
                    describe('P', ""),
                    execute("", 0),
                ]
                .concat(),
            )
            .synced([parse("a", "BEGIN"), close('S', "a")].concat())
            .query("COMMIT")
            .synced(unnamed("BEGIN"))
            .synced(unnamed("COMMIT")),
    );
}

#[test]
fn case_102_a_simple_query_ends_the_unnamed_statement() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("unnamed and simple")
            .synced(parse("", "SELECT label FROM item WHERE id = 3"))
            .synced(run(""))
            .query("SELECT 1")
            .synced(run("")),
    );
}

#[test]
fn every_cut_of_a_stream_gives_the_same_answers() {
    let mut stage = Stage::new();
    stage.check_every_cut(
        &Script::new("cuts")
            .query("SELECT 1")
            .synced([parse("a", "SELECT $1::int"), bind("", "a", &[Some("7")]), execute("", 0)].concat())
            .synced([close('S', "a"), parse("a", "nonsense")].concat())
            .query("BEGIN; ROLLBACK"),
    );
}
