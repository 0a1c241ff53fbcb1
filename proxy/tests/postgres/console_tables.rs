//! That the console's tables say what is so.

use std::collections::BTreeMap;

use pgrouting_contract::config::PoolMode;
use pgrouting_contract::stage::Stage;

use super::support::client::{Client, Login};
use super::support::console::{
    CONSOLE, Row, await_shown, columns, console, document_with_console, rows, show,
};
use super::support::message::{batch, parse, query, run, sync};
use super::support::poll;
use super::support::proxy::{Proxy, server};
use super::support::server::{Database, primary, standby};

fn number(row: &Row, column: &str) -> u64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column} of {row:?}"))
}

#[test]
fn the_version_is_one_that_tools_can_parse() {
    let proxy = Proxy::start(document_with_console());
    let version = console(&proxy).value("SHOW VERSION").unwrap();
    let number = version.strip_prefix("PgBouncer ").unwrap().split(' ').next().unwrap();
    assert_eq!(number.split('.').filter(|part| part.parse::<u32>().is_ok()).count(), 3, "{version}");
    assert!(version.contains("pgrouting-proxy"));
}

#[test]
fn pools_clients_and_servers_say_what_is_under_way() {
    let database = Database::create();
    let mut config = document_with_console();
    config.pooling.max_server_connections = 1;
    let proxy = Proxy::start(config);
    let mut busy = proxy.login(&database).with("application_name", "busy").connect();
    let mut waiting = proxy.login(&database).with("application_name", "waiting").connect();
    let _idle = proxy.login(&database).with("application_name", "idle").connect();
    let mut admin = console(&proxy);
    let backend = busy.backend();
    busy.run("BEGIN");
    waiting.send(&query("SELECT 1"));
    await_shown(&mut admin, "POOLS", ("database", &database.name), "cl_waiting", "1");
    let pool = rows(&mut admin, "POOLS", "database", &database.name).remove(0);
    for (column, expected) in [
        ("user", "app"),
        ("cl_active", "2"),
        ("sv_active", "1"),
        ("sv_idle", "0"),
        ("pool_mode", "transaction"),
    ] {
        assert_eq!(pool[column], expected, "{column} of {pool:?}");
    }
    assert!(number(&pool, "maxwait") * 1_000_000 + number(&pool, "maxwait_us") > 0);
    let by_name: BTreeMap<_, _> = rows(&mut admin, "CLIENTS", "database", &database.name)
        .into_iter()
        .map(|row| (row["application_name"].clone(), row))
        .collect();
    let states = ["busy", "waiting", "idle"].map(|name| by_name[name]["state"].as_str());
    assert_eq!(states, ["active", "waiting", "idle"]);
    assert!(number(&by_name["waiting"], "wait_us") + number(&by_name["waiting"], "wait") > 0);
    assert_eq!(by_name["busy"]["local_port"], proxy.port.to_string());
    let server = rows(&mut admin, "SERVERS", "database", &database.name).remove(0);
    for (column, expected) in [
        ("type", "S"),
        ("state", "active"),
        ("addr", "127.0.0.1"),
        ("port", &primary().port.to_string()),
        ("remote_pid", &backend),
        ("application_name", "busy"),
        ("link", &by_name["busy"]["ptr"]),
        ("close_needed", "0"),
    ] {
        assert_eq!(server[column], expected, "{column} of {server:?}");
    }
    assert_eq!(by_name["busy"]["link"], server["ptr"]);
    assert_eq!(by_name["idle"]["link"], "");
    assert!(server["connect_time"].ends_with(" UTC") && server["request_time"] >= server["connect_time"]);
    busy.run("COMMIT");
    waiting.ready();
    await_shown(&mut admin, "POOLS", ("database", &database.name), "sv_idle", "1");
    let pool = rows(&mut admin, "POOLS", "database", &database.name).remove(0);
    assert_eq!((&*pool["cl_active"], &*pool["cl_waiting"], &*pool["maxwait"]), ("3", "0", "0"));
    assert_eq!(rows(&mut admin, "SERVERS", "database", &database.name)[0]["link"], "");
    let active = show(&mut admin, "ACTIVE_SOCKETS");
    assert_eq!(active.len(), 1, "but for the console nobody does anything: {active:?}");
    assert_eq!(show(&mut admin, "SOCKETS").len(), 5);
}

#[test]
fn an_application_that_changes_its_name_is_shown_under_the_new_one() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let mut client = proxy.login(&database).with("application_name", "before").connect();
    let mut admin = console(&proxy);
    await_shown(&mut admin, "CLIENTS", ("database", &database.name), "application_name", "before");
    client.run("SET application_name = 'after'");
    await_shown(&mut admin, "CLIENTS", ("database", &database.name), "application_name", "after");
}

/// The row of a database as soon as something has been counted so often: an exchange is counted when the client has its
/// answer.
fn stats(admin: &mut Client, database: &Database, column: &str, count: u64) -> Row {
    poll(&format!("{column} to be {count}"), || {
        let row = rows(admin, "STATS", "database", &database.name).pop()?;
        (number(&row, column) == count).then_some(row)
    })
}

#[test]
fn statistics_count_what_clients_did() {
    let (database, other) = (Database::create(), Database::create());
    let proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    let mut client = proxy.client(&database);
    proxy.client(&other).run("SELECT 1");
    client.run("SELECT 1");
    let before = stats(&mut admin, &database, "total_query_count", 1);
    let sql = format!("SELECT repeat('x', 5000) -- {}", "y".repeat(3000));
    for _ in 0..10 {
        client.run(&sql);
    }
    client.run("BEGIN");
    client.run("SELECT 1");
    client.run("SELECT 2");
    client.run("COMMIT");
    for _ in 0..3 {
        client.ask(&batch("SELECT 3"));
    }
    let after = stats(&mut admin, &database, "total_query_count", 18);
    let grown = |column: &str| number(&after, column) - number(&before, column);
    for (column, expected) in [
        ("total_xact_count", 14),
        ("total_query_count", 17),
        ("total_server_assignment_count", 14),
        ("total_client_parse_count", 3),
        ("total_server_parse_count", 3),
        ("total_bind_count", 3),
        ("total_client_login_count", 0),
    ] {
        assert_eq!(grown(column), expected, "{column}");
    }
    assert!((30_000..33_000).contains(&grown("total_received")), "{}", grown("total_received"));
    assert!((50_000..54_000).contains(&grown("total_sent")), "{}", grown("total_sent"));
    assert_eq!(number(&after, "total_client_login_count"), 1);
    stats(&mut admin, &other, "total_query_count", 1);
    // The same in the other tables, and in the metrics.
    let totals = rows(&mut admin, "STATS_TOTALS", "database", &database.name).remove(0);
    assert_eq!(totals["query_count"], after["total_query_count"]);
    assert_eq!(totals["bytes_received"], after["total_received"]);
    let sums: BTreeMap<_, _> = show(&mut admin, "TOTALS")
        .into_iter()
        .map(|row| (row["name"].clone(), row["value"].clone()))
        .collect();
    assert_eq!(sums.len(), 24);
    assert!(sums["total_query_count"].parse::<u64>().unwrap() > number(&after, "total_query_count"));
    assert!(proxy.metric("pgrouting_proxy_received_bytes_total") >= number(&after, "total_received"));
}

#[test]
fn statements_that_many_use_are_prepared_once_and_counted_where_they_are() {
    let database = Database::create();
    let mut config = document_with_console();
    config.pooling.max_server_connections = 1;
    let proxy = Proxy::start(config);
    let mut clients: Vec<_> = (0..3).map(|_| proxy.client(&database)).collect();
    for client in &mut clients {
        client.ask(&[parse("mine", "SELECT 1 AS one"), run("mine"), sync()].concat());
    }
    let mut admin = console(&proxy);
    let stats = stats(&mut admin, &database, "total_client_parse_count", 3);
    let counts = ["total_client_parse_count", "total_server_parse_count", "total_bind_count"];
    assert_eq!(counts.map(|column| number(&stats, column)), [3, 1, 3]);
    poll("each side to have one statement", || {
        let sockets = rows(&mut admin, "SOCKETS", "database", &database.name);
        sockets.iter().all(|row| row["prepared_statements"] == "1").then_some(())
    });
}

#[test]
fn times_of_transactions_are_known_by_looking_now_and_then() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    let mut client = proxy.client(&database);
    // It is a sample: what took long is found to have taken long.
    client.run("SELECT pg_sleep(3)");
    let stats = stats(&mut admin, &database, "total_xact_count", 1);
    let millis = number(&stats, "total_xact_time") / 1000;
    assert!((1_000..6_000).contains(&millis), "{millis} ms");
    assert_eq!(stats["total_query_time"], stats["total_xact_time"]);
    assert!(number(&stats, "avg_xact_time") > 500_000);
}

#[test]
fn waits_are_counted_for_the_database_that_waits() {
    let (database, other) = (Database::create(), Database::create());
    let mut config = document_with_console();
    config.pooling.max_server_connections = 1;
    let proxy = Proxy::start(config);
    let (mut holder, mut waiting) = (proxy.client(&database), proxy.client(&other));
    holder.run("BEGIN");
    waiting.send(&query("SELECT 1"));
    let mut admin = console(&proxy);
    await_shown(&mut admin, "POOLS", ("database", &other.name), "cl_waiting", "1");
    let wait = |admin: &mut Client, database: &Database| {
        number(&rows(admin, "STATS", "database", &database.name)[0], "total_wait_time")
    };
    let before = wait(&mut admin, &other);
    holder.run("COMMIT");
    waiting.ready();
    assert!(wait(&mut admin, &other) > before);
}

#[test]
fn databases_are_shown_at_each_server_with_their_connections() {
    let database = Database::create();
    let mut config = document_with_console();
    config.servers = vec![server("one", primary().port), server("two", standby().port)];
    config.stage = Stage::Split;
    let proxy = Proxy::start(config);
    let mut admin = console(&proxy);
    poll("the replica to take part", || {
        (show(&mut admin, "HOSTS").get(1)?["rotation"] == "In").then_some(())
    });
    let mut client = proxy.client(&database);
    client.run("CREATE TABLE written (n int)");
    let shown = rows(&mut admin, "DATABASES", "name", &database.name);
    let ports: Vec<_> = shown.iter().map(|row| row["port"].clone()).collect();
    assert_eq!(ports, [primary().port.to_string(), standby().port.to_string()]);
    assert_eq!(shown[0]["current_connections"], "1");
    assert_eq!(shown[0]["pool_size"], "4");
    assert_eq!(shown[1]["current_client_connections"], "1");
    let hosts = show(&mut admin, "HOSTS");
    assert_eq!(hosts.iter().map(|row| &*row["role"]).collect::<Vec<_>>(), ["Primary", "Replica"]);
    assert!(hosts.iter().all(|row| row["health"] == "Up"));
    let console = rows(&mut admin, "DATABASES", "name", CONSOLE).remove(0);
    assert_eq!((&*console["port"], &*console["force_user"]), (&*proxy.port.to_string(), CONSOLE));
}

#[test]
fn lists_and_users_count_everything() {
    let database = Database::create();
    let mut config = document_with_console();
    config.pooling.mode = PoolMode::Session;
    let proxy = Proxy::start(config);
    let _clients = [proxy.client(&database), proxy.client(&database)];
    let mut admin = console(&proxy);
    let lists: BTreeMap<_, _> = show(&mut admin, "LISTS")
        .into_iter()
        .map(|row| (row["list"].clone(), row["items"].clone()))
        .collect();
    for (list, items) in
        [("databases", "2"), ("users", "3"), ("pools", "2"), ("used_clients", "3"), ("used_servers", "2")]
    {
        assert_eq!(lists[list], items, "{list} of {lists:?}");
    }
    let app = rows(&mut admin, "USERS", "name", "app").remove(0);
    assert_eq!((&*app["current_connections"], &*app["current_client_connections"]), ("2", "2"));
    assert_eq!(rows(&mut admin, "POOLS", "database", &database.name)[0]["pool_mode"], "session");
}

#[test]
fn the_document_is_shown_without_its_passwords() {
    let proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    let answer = admin.run("SHOW CONFIG");
    let shown = format!("{:?}", answer.rows());
    assert!(!shown.contains("app secret") && shown.contains("****"));
    let key = |admin: &mut Client, key: &str| rows(admin, "CONFIG", "key", key).remove(0);
    let row = key(&mut admin, "pooling.maxServerConnections");
    assert_eq!((&*row["value"], &*row["default"], &*row["changeable"]), ("4", "20", "yes"));
    assert_eq!(key(&mut admin, "process.workers")["changeable"], "no");
    assert_eq!(key(&mut admin, "max_client_conn")["value"], "10000");
}

#[test]
fn the_mirror_is_shown_at_the_console_as_it_is_to_clients() {
    let database = Database::create();
    let proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    // Statements of others are seen by those who may use the console.
    let mut client = proxy.client(&database);
    assert_eq!(client.run("SHOW MIRROR").sqlstate(), None);
    for sql in ["SHOW MIRROR DIFFS", "SHOW MIRROR REPORT"] {
        assert_eq!(client.try_query(sql).sqlstate().as_deref(), Some("42501"), "{sql}");
    }
    let mut client = Login::new(proxy.port, "app_b", &database.name).connect();
    for sql in ["SHOW MIRROR", "SHOW MIRROR DIFFS", "SHOW MIRROR REPORT"] {
        let (ours, theirs) = (admin.run(sql), client.run(sql));
        assert_eq!((ours.rows(), columns(&ours)), (theirs.rows(), columns(&theirs)), "{sql}");
    }
}
