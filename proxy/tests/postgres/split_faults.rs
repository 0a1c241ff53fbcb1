//! What becomes of reads when a replica, or what the proxy has to know, is not there.

use pgrouting_contract::stage::Stage;

use super::split::To::{Primary, Replica};
use super::split::{CRATE, Split, went, why};
use super::support::client::Client;
use super::support::message::{batch, bind, close, execute, parse, query, sync};
use super::support::poll;
use super::support::proxy::server;
use super::support::server::{own_standby, standby};

/// Ends the server process of `app` on the standby that runs a query like this.
fn end_on_standby(like: &str) {
    let mut standby = standby().admin("postgres");
    poll("the query to run on the standby", || {
        let sql = format!(
            "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity \
             WHERE usename = 'app' AND state = 'active' AND query LIKE '{like}%'"
        );
        standby.value(&sql).filter(|ended| ended == "true")
    });
}

#[test]
fn a_replica_that_goes_away_before_it_answers_is_replaced() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    for form in [query("SELECT 'one', pg_sleep(2)"), batch("SELECT 'one', pg_sleep(2) ")] {
        client.send(&form);
        end_on_standby("SELECT ''one'', pg_sleep(2)");
        assert_eq!(client.ready().column(), ["one"]);
        assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "rescued"));
    }
    assert_eq!(split.proxy.metric("pgrouting_proxy_rescued_total{cause=\"gone\"}"), 2);
    client.run("SELECT 1");
    assert_eq!(went(&mut client), Replica);
}

#[test]
fn a_request_behind_one_that_closes_is_run_again_like_any_other() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    // As drivers do that close a statement when they begin the next one; and one behind another that is answered.
    for before in [[bind("", "old", &[]), execute("", 0)].concat(), close('S', "old")] {
        client.send(&[parse("old", "SELECT 1"), sync()].concat());
        client.ready();
        client.send(&[before, sync(), batch("SELECT 'one', pg_sleep(2)")].concat());
        client.ready();
        end_on_standby("SELECT ''one'', pg_sleep(2)");
        assert_eq!(client.ready().column(), ["one"]);
        assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "rescued"));
    }
    assert_eq!(split.proxy.metric("pgrouting_proxy_rescued_total{cause=\"gone\"}"), 2);
}

#[test]
fn a_read_in_a_replica_s_place_outlives_its_connection_to_the_primary() {
    let split = Split::of(&CRATE, |config| config.servers[1].weight = 0);
    let mut client = split.client();
    for form in [query("SELECT 'one', pg_sleep(2)"), batch("SELECT 'one', pg_sleep(2) ")] {
        client.send(&form);
        let mut admin = split.database.admin();
        poll("the query to run on the primary", || {
            let sql = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE usename = 'app' \
                       AND datname = current_database() AND wait_event = 'PgSleep'";
            admin.value(sql).filter(|ended| ended == "true")
        });
        assert_eq!(client.ready().column(), ["one"]);
        assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "rescued"));
    }
    // What may have written is told of.
    client.send(&query("UPDATE crate SET qty = 1 WHERE pg_sleep(2) IS NULL"));
    split.database.await_sleeping("1");
    split.database.admin().run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND wait_event = 'PgSleep'",
    );
    assert_eq!(client.ended_with(), "57P01");
}

#[test]
fn a_replica_that_goes_away_in_its_answer_takes_the_answer_with_it() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    // Some rows come, and then no more.
    let sql = "SELECT g, repeat('x', 1000), pg_sleep(CASE WHEN g > 50 THEN 2 ELSE 0 END) FROM generate_series(1, 60) g";
    for form in [query(sql), batch(sql)] {
        client.send(&form);
        client.until('D');
        end_on_standby("SELECT g, repeat");
        let answer = client.ready();
        assert_eq!(answer.sqlstate().as_deref(), Some("08006"), "{}", answer.error());
        assert_eq!(
            (answer.tags().len(), answer.status()),
            (0, 'I'),
            "no end that is none, and the session goes on"
        );
        assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"]);
    }
}

#[test]
fn a_read_that_recovery_cancels_is_run_on_the_primary() {
    let own = own_standby();
    let mut admin = own.admin("postgres");
    admin.run("ALTER SYSTEM SET max_standby_streaming_delay = 0");
    admin.run("SELECT pg_reload_conf()");
    let split = Split::of(&CRATE, |config| config.servers[1] = server("two", own.port));
    let mut client = split.client();
    client.send(&query("SELECT count(*), pg_sleep(count(*)) FROM crate"));
    poll("the query to run on the standby", || {
        let running =
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'app' AND wait_event = 'PgSleep'";
        admin.value(running).filter(|count| count == "1")
    });
    split.database.direct().run("TRUNCATE crate");
    assert_eq!(client.ready().column(), ["0"], "as the primary sees it");
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "rescued"));
    assert_eq!(split.proxy.metric("pgrouting_proxy_rescued_total{cause=\"conflict\"}"), 1);
}

#[test]
fn a_replica_that_is_gone_costs_nobody_a_read() {
    let mut own = own_standby();
    let split = Split::of(&CRATE, |config| config.servers[1] = server("two", own.port));
    let mut known = split.client();
    poll("the standby to have caught up", || {
        known.run("SELECT 1");
        let is_there = known.try_query("SELECT count(*) FROM crate").column() == ["5"];
        (is_there && went(&mut known) == Replica).then_some(())
    });
    own.crash();
    // One that had been there, and ones that have yet to find a connection.
    assert_eq!(known.column("SELECT count(*) FROM crate"), ["5"]);
    for _ in 0..4 {
        let mut client = split.client();
        assert_eq!(client.ask(&batch("SELECT count(*) FROM crate")).column(), ["5"]);
        assert_eq!(went(&mut client), Primary);
    }
}

#[test]
fn a_catalog_that_cannot_be_read_keeps_reads_on_the_primary() {
    let mut split = Split::of(&CRATE, |config| config.stage = Stage::PoolingOnly);
    let mut admin = split.database.admin();
    admin.run("REVOKE SELECT ON pg_catalog.pg_rewrite FROM PUBLIC");
    split.proxy.change(|config| config.stage = Stage::Split);
    let mut client = split.client();
    client.run("SELECT 1");
    poll("the reader to have failed", || {
        split.proxy.log().contains("the catalog cannot be read").then_some(())
    });
    assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"]);
    assert_eq!((went(&mut client), why(&mut client).as_str()), (Primary, "no_catalog"));
    admin.run("GRANT SELECT ON pg_catalog.pg_rewrite TO PUBLIC");
    poll("the catalog to be read", || {
        client.run("SELECT 1");
        (went(&mut client) == Replica).then_some(())
    });
}

#[test]
fn whoever_asks_the_admin_api_wrongly_is_told() {
    let split = Split::new(&CRATE);
    let ask = |body: &serde_json::Value| split.proxy.post_json("/route/explain", &body.to_string());
    assert_eq!(ask(&serde_json::json!({"statement": "SELECT 1"})).status, 400);
    assert_eq!(ask(&serde_json::json!({"database": 1, "statement": "SELECT 1"})).status, 400);
    assert_eq!(split.proxy.post_json("/route/explain", "{").status, 400);
    let answer = ask(&serde_json::json!({"database": "nowhere", "statement": "SELECT 1"}));
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("not known"), "{}", answer.body);
}

#[test]
fn prepared_commands_are_kept_up_to_a_bound() {
    let split = Split::new(&CRATE);
    let mut client = split.client();
    for number in 0..65 {
        assert_eq!(
            client.ask(&[parse(&format!("c{number}"), "SHOW SERVER ROLE"), sync()].concat()).types(),
            "1Z"
        );
    }
    let run =
        |client: &mut Client, name: &str| client.ask(&[bind("", name, &[]), execute("", 0), sync()].concat());
    assert_eq!(run(&mut client, "c64").column(), ["auto"]);
    let answer = run(&mut client, "c0");
    assert_eq!((answer.sqlstate().as_deref(), answer.status()), (Some("26000"), 'I'));
    assert_eq!(client.column("SELECT count(*) FROM crate"), ["5"]);
}
