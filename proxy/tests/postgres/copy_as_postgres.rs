//! COPY both ways is answered byte for byte as PostgreSQL answers it.

use super::support::message::{
    bind, copy_data, copy_done, copy_fail, execute, flush, parse, query, run, sync, unnamed,
};
use super::support::same::{Script, Stage};

const COPY_IN: &str = "COPY item FROM STDIN";
const COUNT: &str = "SELECT count(*) FROM item";

#[test]
fn copy_out_is_answered_as_by_postgres() {
    let mut stage = Stage::new();
    let sql = "COPY (SELECT id, label FROM item ORDER BY id) TO STDOUT";
    for script in [
        Script::new("simple").query(sql).query("COPY item TO STDOUT (FORMAT binary)"),
        Script::new("among others").query(&format!("SELECT 1; {sql}; SELECT 2")),
        Script::new("extended").synced(unnamed(sql)).synced([parse("a", sql), run("a"), run("a")].concat()),
        Script::new("nothing").query("COPY (SELECT 1 WHERE false) TO STDOUT"),
        Script::new("wrong").query("COPY nothing TO STDOUT").synced(unnamed("COPY nothing TO STDOUT")),
    ] {
        stage.check(&script);
    }
}

#[test]
fn copy_in_is_answered_as_by_postgres() {
    let mut stage = Stage::new();
    let rows = [copy_data(b"10\tten\n11\t"), copy_data(b"eleven\n"), copy_data(b"")].concat();
    for script in [
        Script::new("done").until('G', query(COPY_IN)).ask([rows.clone(), copy_done()].concat()).query(COUNT),
        Script::new("failed by the client")
            .until('G', query(COPY_IN))
            .ask([rows.clone(), copy_fail("client gave up")].concat())
            .query(COUNT),
        Script::new("nothing").until('G', query(COPY_IN)).ask(copy_done()).query(COUNT),
        Script::new("among others")
            .until('G', query(&format!("SELECT 1; {COPY_IN}; SELECT 2")))
            .ask([rows.clone(), copy_done()].concat()),
        Script::new("twice in one query")
            .until('G', query(&format!("{COPY_IN}; {COPY_IN}; {COUNT}")))
            .until('G', [rows.clone(), copy_done()].concat())
            .ask([copy_data(b"12\t\n"), copy_done()].concat()),
        Script::new("syncs and flushes inside are ignored")
            .until('G', query(COPY_IN))
            .ask([sync(), flush(), copy_data(b"10\t\n"), sync(), copy_done()].concat())
            .query(COUNT),
    ] {
        stage.check(&script);
    }
}

#[test]
fn case_119_a_bad_row_ends_the_copy_while_data_still_comes() {
    let mut stage = Stage::new();
    let bad: Vec<u8> = (0..600).flat_map(|n| copy_data(format!("x{n}\tbad\n").as_bytes())).collect();
    stage.check(
        &Script::new("bad rows")
            .until('G', query(COPY_IN))
            .ask([bad, copy_done()].concat())
            .query(COUNT)
            .query("BEGIN")
            .until('G', query(COPY_IN))
            .ask([copy_data(b"1\tdup\n"), copy_done()].concat())
            .query("SELECT 1")
            .query("ROLLBACK"),
    );
}

#[test]
fn copy_in_in_one_write_with_other_requests_stays_in_step() {
    let mut stage = Stage::new();
    let rows = [copy_data(b"10\tten\n"), copy_done()].concat();
    stage.check(
        &Script::new("simple")
            .ask_times(3, [query("SELECT 1"), query(COPY_IN), rows.clone(), query(COUNT)].concat())
            .ask_times(2, [unnamed("SELECT 2"), sync(), query("SELECT 3")].concat()),
    );
    stage.check(
        &Script::new("then extended")
            .ask_times(2, [query(COPY_IN), rows.clone(), unnamed(COUNT), sync()].concat())
            .query("SELECT 1"),
    );
}

#[test]
fn case_122_copy_messages_outside_a_copy_are_ignored() {
    let mut stage = Stage::new();
    stage.check(
        &Script::new("stray")
            .send(copy_data(b"xx\n\n"))
            .send(copy_done())
            .query("SELECT 1")
            .send(copy_fail("nothing to fail"))
            .synced([copy_data(b"x"), unnamed("SELECT 2"), copy_done()].concat()),
    );
}

#[test]
fn copy_in_by_the_extended_protocol_is_answered_as_by_postgres() {
    let mut stage = Stage::new();
    let rows = copy_data(b"10\tten\n11\televen\n");
    for script in [
        Script::new("done")
            .until('G', [unnamed(COPY_IN), flush()].concat())
            .ask([rows.clone(), copy_done(), sync()].concat())
            .query(COUNT),
        Script::new("with a sync before the data, as libpq has it")
            .until('G', [unnamed(COPY_IN), sync()].concat())
            .ask([rows.clone(), copy_done(), sync()].concat())
            .query(COUNT),
        Script::new("failed by the client")
            .until('G', [unnamed(COPY_IN), sync()].concat())
            .ask([rows.clone(), copy_fail("no"), sync()].concat())
            .query(COUNT),
        Script::new("a bad row")
            .until('G', [unnamed(COPY_IN), sync()].concat())
            .ask([copy_data(b"x\t\n"), rows.clone(), copy_done(), sync()].concat())
            .query(COUNT),
        Script::new("everything in one write")
            .ask([unnamed(COPY_IN), rows.clone(), copy_done(), sync()].concat())
            .query(COUNT),
        Script::new("with more behind it")
            .ask([unnamed(COPY_IN), rows.clone(), copy_done(), unnamed(COUNT), sync()].concat()),
        Script::new("a prepared one, twice")
            .synced(parse("a", COPY_IN))
            .until('G', [run("a"), flush()].concat())
            .ask([rows.clone(), copy_done(), sync()].concat())
            .until('G', [bind("", "a", &[]), execute("", 0), flush()].concat())
            .ask([copy_data(b"12\t\n"), copy_done(), sync()].concat())
            .query(COUNT),
    ] {
        stage.check(&script);
    }
}

#[test]
fn copy_data_is_never_held_back() {
    let mut stage = Stage::new();
    let rows = [copy_data(b"10\tten\n"), copy_done()].concat();
    for script in [
        Script::new("after an unnamed statement")
            .synced(unnamed("SELECT 1"))
            .until('G', query(COPY_IN))
            .ask(&rows)
            .query(COUNT),
        Script::new("behind a definition")
            .ask([parse("a", "SELECT 1"), query(COPY_IN), rows.clone()].concat())
            .synced(run("a")),
        Script::new("with syncs inside, in one write")
            .count(7, [query(COPY_IN), sync(), sync(), rows.clone(), query(COUNT)].concat()),
        Script::new("behind a definition, with syncs inside")
            .until('G', [parse("a", "SELECT 1"), query(COPY_IN)].concat())
            .ask([sync(), rows].concat())
            .synced(run("a")),
    ] {
        stage.check(&script);
    }
}
