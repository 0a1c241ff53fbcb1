//! The console as clients meet it: who may, what it answers, and that it stays in step.

use pgrouting_contract::tls::{ClientTlsMode, ServerTlsMode};

use super::support::certificates::{secure_primary, tls};
use super::support::client::Login;
use super::support::console::{CONSOLE, columns, console, console_login, document_with_console, show};
use super::support::http::request;
use super::support::message::{
    batch, bind, bind_formatted, close, describe, execute, function_call, parse, query, sync,
};
use super::support::poll;
use super::support::proxy::{Proxy, document};
use super::support::secure::Secure;
use super::support::server::{Database, ROLES, primary};

#[test]
fn nobody_may_use_the_console_unless_they_are_named() {
    let proxy = Proxy::start(document());
    for role in ["app", "app_b"] {
        assert_eq!(Login::new(proxy.port, role, CONSOLE).refused(), "42501");
    }
    let named = Proxy::start(document_with_console());
    assert_eq!(Login::new(named.port, "app", CONSOLE).refused(), "42501");
    assert_eq!(console_login(&named).password("wrong").refused(), "28P01");
    console(&named).run("SHOW VERSION");
}

#[test]
fn whoever_may_look_may_change_nothing() {
    let proxy = Proxy::start(document_with_console());
    let mut stats = Login::new(proxy.port, "other", CONSOLE).connect();
    stats.run("SHOW STATS; SET extra_float_digits = 2; SELECT 1");
    for sql in [
        "PAUSE",
        "RESUME",
        "DISABLE x",
        "ENABLE x",
        "RECONNECT",
        "KILL",
        "KILL_CLIENT 1",
        "WAIT_CLOSE",
        "RELOAD",
        "SUSPEND",
        "SHUTDOWN",
    ] {
        assert_eq!(stats.try_query(sql).sqlstate().as_deref(), Some("42501"), "{sql}");
    }
    assert_eq!(show(&mut console(&proxy), "STATE")[0]["value"], "yes");
}

#[test]
fn a_right_that_is_taken_away_is_gone_at_once() {
    let mut proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    admin.run("PAUSE nowhere");
    proxy.change(|config| {
        let console = config.console.as_mut().unwrap();
        console.stats_users = std::mem::take(&mut console.admin_users);
    });
    assert_eq!(admin.try_query("RESUME nowhere").sqlstate().as_deref(), Some("42501"));
    admin.run("SHOW POOLS");
    proxy.change(|config| config.console = None);
    assert_eq!(admin.try_query("SHOW POOLS").sqlstate().as_deref(), Some("42501"));
}

#[test]
fn the_console_may_be_at_another_database() {
    let database = Database::create();
    let mut config = document_with_console();
    config.console.as_mut().unwrap().database.clone_from(&database.name);
    let proxy = Proxy::start(config);
    // The real one of that name is out of reach.
    let mut client = Login::new(proxy.port, "app_b", &database.name).connect();
    assert!(client.value("SHOW VERSION").unwrap().starts_with("PgBouncer 1."));
    assert_eq!(Login::new(proxy.port, "app_b", CONSOLE).refused(), "3D000");
}

#[test]
fn several_commands_run_in_turn_to_the_first_that_fails() {
    let proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    let answer = admin.try_query("show version; PAUSE a ;resume a; bogus; PAUSE b");
    assert_eq!(answer.tags(), ["SHOW", "PAUSE", "RESUME"]);
    assert_eq!(answer.sqlstate().as_deref(), Some("42601"));
    assert_eq!(answer.types(), "TDCCCEZ");
    assert_eq!(admin.try_query("RESUME b").sqlstate().as_deref(), Some("55000"), "it was not paused");
    assert_eq!(admin.try_query(" ; ").types(), "IZ");
    assert_eq!(admin.try_query("").types(), "IZ");
}

#[test]
fn what_drivers_say_first_is_taken() {
    let proxy = Proxy::start(document_with_console());
    let mut admin = console_login(&proxy).with("extra_float_digits", "3").with("x", "y").connect();
    for sql in [
        "SET extra_float_digits = 3",
        "SET application_name = 'PostgreSQL JDBC Driver'",
        "set client_encoding to 'UTF8'",
        "SET DateStyle=ISO; SET client_min_messages TO warning;",
        "DISCARD ALL",
        "SELECT 1",
    ] {
        admin.run(sql);
    }
    assert_eq!(admin.value("SELECT 1").as_deref(), Some("1"));
    let told: Vec<_> = admin.parameters.iter().map(|(name, _)| name.as_str()).collect();
    for name in ["server_version", "client_encoding", "DateStyle", "TimeZone", "standard_conforming_strings"]
    {
        assert!(told.contains(&name), "{name}");
    }
    for (sql, sqlstate) in [
        ("SET pool_mode = session", "0A000"),
        ("BEGIN", "0A000"),
        ("SHOW FDS", "0A000"),
        ("SUSPEND", "0A000"),
        ("SELECT * FROM pg_class", "42601"),
        ("SHOW nothing", "42601"),
    ] {
        let answer = admin.try_query(sql);
        assert_eq!(answer.sqlstate().as_deref(), Some(sqlstate), "{sql}");
        assert!(answer.of('E').next().unwrap().field('H').is_some(), "{sql} has a hint");
    }
}

#[test]
fn help_is_a_notice_with_every_table() {
    let proxy = Proxy::start(document_with_console());
    let answer = console(&proxy).run("SHOW HELP");
    assert_eq!(answer.tags(), ["SHOW"]);
    let help = answer.of('N').next().unwrap().field('D').unwrap();
    for (name, _) in pgrouting_proxy::console::command::Show::ALL {
        let name = name.split(' ').next().unwrap().to_ascii_uppercase();
        assert!(name == "FDS" || help.contains(&name), "{name} is not in {help}");
    }
}

#[test]
fn the_extended_protocol_is_served_too() {
    let proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    let answer = admin.ask(&batch("SHOW LISTS"));
    assert!(answer.types().starts_with("12TD") && answer.types().ends_with("DCZ"), "{}", answer.types());
    assert_eq!(columns(&answer), [("list".to_owned(), 25), ("items".to_owned(), 23)]);
    // As pgx asks: a named statement, described, and values in binary.
    let answer = admin.ask(&[parse("s", "SHOW DNS_HOSTS; "), describe('S', "s"), sync()].concat());
    assert_eq!(answer.types(), "1tTZ");
    admin.ask(&[parse("s", "SELECT 1"), sync()].concat());
    let bound = bind_formatted("", "s", &[], &[], &[1]);
    let answer = admin.ask(&[bound, describe('P', ""), execute("", 0), close('S', "s"), sync()].concat());
    assert_eq!(answer.types(), "2TDC3Z");
    assert_eq!(answer.of('D').next().unwrap().values(), [Some(vec![0, 0, 0, 1])]);
    let answer = admin.ask(&batch("SHOW STATS_TOTALS"));
    assert_eq!(answer.tags(), ["SHOW"]);
    assert_eq!(admin.ask(&batch("")).types(), "12nIZ");
    assert_eq!(admin.ask(&batch("RECONNECT")).types(), "12nCZ");
}

#[tokio::test]
async fn a_driver_that_prepares_everything_can_use_it() {
    let proxy = Proxy::start(document_with_console());
    let config =
        format!("host=127.0.0.1 port={} user=app_b password='app_b secret' dbname={CONSOLE}", proxy.port);
    let (client, connection) = tokio_postgres::connect(&config, tokio_postgres::NoTls).await.unwrap();
    // It ends with the client.
    tokio::spawn(connection);
    client.batch_execute("PAUSE nowhere; RESUME nowhere").await.unwrap();
    let lists = client.query("SHOW LISTS", &[]).await.unwrap();
    let users = lists.iter().find(|row| row.get::<_, &str>("list") == "users").unwrap();
    assert_eq!(users.get::<_, i32>("items"), 3);
    assert_eq!(client.execute("RECONNECT", &[]).await.unwrap(), 0);
    let error = client.query("SHOW nothing", &[]).await.unwrap_err();
    assert_eq!(error.code(), Some(&tokio_postgres::error::SqlState::SYNTAX_ERROR));
    assert_eq!(client.query_one("SELECT 1", &[]).await.unwrap().get::<_, i32>(0), 1);
}

#[test]
fn after_an_error_of_the_extended_protocol_it_is_in_step_again() {
    let proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    for (bytes, sqlstate) in [
        (batch("bogus"), "42601"),
        (batch("SHOW POOLS; SHOW STATS"), "42601"),
        ([bind("", "unknown", &[]), execute("", 0), sync()].concat(), "26000"),
        ([execute("unknown", 0), sync()].concat(), "26000"),
        (batch("SET pool_mode = session"), "0A000"),
        (function_call(1, &[]), "0A000"),
    ] {
        let answer = admin.ask(&bytes);
        assert_eq!(answer.sqlstate().as_deref(), Some(sqlstate));
        assert_eq!(answer.of('E').count(), 1);
        assert_eq!(admin.value("SELECT 1").as_deref(), Some("1"));
    }
    admin.send(&[query("SHOW STATE"), query("SHOW VERSION"), batch("SHOW PEERS")].concat());
    assert_eq!(admin.ready_times(3).tags(), ["SHOW"; 3]);
}

#[test]
fn the_console_is_open_where_all_other_places_are_taken() {
    let database = Database::create();
    let mut config = document_with_console();
    config.pooling.max_client_connections = 1;
    let proxy = Proxy::start(config);
    let _client = proxy.client(&database);
    assert_eq!(proxy.login(&database).refused(), "53300");
    console(&proxy).run("SHOW POOLS");
}

#[test]
fn it_can_be_reached_over_tls_and_shows_how_each_side_is_encrypted() {
    let (database, ca) = (Database::create(), secure_primary());
    let mut config = document_with_console();
    let client_side = ca.accepting(ClientTlsMode::Require);
    config.tls = tls(Some(client_side), Some(ca.connecting(ServerTlsMode::Require)));
    let proxy = Proxy::start(config);
    assert_eq!(console_login(&proxy).refused(), "28000");
    let secure = Secure::new(ca, None);
    let mut client = proxy.login(&database).over(&secure).connect();
    client.run("SELECT 1");
    let mut admin = console_login(&proxy).over(&secure).connect();
    let sockets = show(&mut admin, "SOCKETS");
    assert_eq!(sockets.len(), 3);
    for socket in &sockets {
        assert!(socket["tls"].starts_with("TLSv1."), "{socket:?}");
    }
    assert_eq!(proxy.metric("pgrouting_proxy_tls_clients{tls=\"on\"}"), 2);
    assert_eq!(proxy.metric("pgrouting_proxy_tls_clients{tls=\"off\"}"), 0);
    admin.run(&format!("PAUSE {0}; RESUME {0}", database.name));
    proxy.stop();
    assert_eq!(admin.ended_with(), "57P01");
}

#[test]
fn users_who_are_passed_through_may_use_it_too() {
    let mut config = document_with_console();
    config.auth = pgrouting_contract::config::AuthConfig::Passthrough {};
    config.probe.user = Some(super::support::proxy::user("probe", "probe secret"));
    assert!(ROLES.contains(&"probe") && primary().port > 0);
    let proxy = Proxy::start(config);
    console(&proxy).run("SHOW USERS");
    assert_eq!(Login::new(proxy.port, "app", CONSOLE).refused(), "42501");
}

#[test]
fn what_is_stopped_is_in_the_report_and_the_metrics() {
    let proxy = Proxy::start(document_with_console());
    assert_eq!(proxy.report().halts, None);
    let mut admin = console(&proxy);
    admin.run("PAUSE a; DISABLE b; DISABLE c; PAUSE");
    let halts = proxy.report().halts.unwrap();
    assert!(halts.is_all_paused);
    assert_eq!((halts.paused, halts.disabled), (vec!["a".to_owned()], vec!["b".to_owned(), "c".to_owned()]));
    assert_eq!(proxy.metric("pgrouting_proxy_console_paused"), 1);
    assert_eq!(proxy.metric("pgrouting_proxy_console_databases{state=\"disabled\"}"), 2);
    let state = show(&mut admin, "STATE");
    assert_eq!((&*state[0]["value"], &*state[1]["value"]), ("no", "yes"));
    admin.run("RESUME; ENABLE b; ENABLE c");
    assert_eq!(proxy.report().halts, None);
    assert_eq!(admin.try_query("RESUME").sqlstate().as_deref(), Some("55000"));
}

#[test]
fn a_proxy_that_is_stopped_says_so_at_the_console() {
    let mut proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    proxy.stop();
    assert_eq!(admin.ended_with(), "57P01");
    proxy.ended();
}

#[test]
fn reload_takes_the_file_or_says_why_not() {
    let mut proxy = Proxy::start(document_with_console());
    let mut admin = console(&proxy);
    let path = proxy.directory.join("proxy.yaml");
    proxy.config.pooling.max_client_connections = 77;
    std::fs::write(&path, proxy.config.canonical_bytes()).unwrap();
    admin.run("RELOAD");
    let limit = |rows: Vec<super::support::console::Row>| {
        rows.into_iter().find(|row| row["key"] == "max_client_conn").unwrap()["value"].clone()
    };
    assert_eq!(limit(show(&mut admin, "CONFIG")), "77");
    std::fs::write(&path, "version: 1\n").unwrap();
    let answer = admin.try_query("RELOAD");
    assert_eq!(answer.sqlstate().as_deref(), Some("F0000"));
    assert!(answer.error().contains("generation"), "{}", answer.error());
    assert_eq!(limit(show(&mut admin, "CONFIG")), "77");
}

#[test]
fn shutdown_ends_the_process_as_it_says() {
    let database = Database::create();
    // At once: in the middle of a transaction.
    let mut proxy = Proxy::start(document_with_console());
    let mut client = proxy.client(&database);
    client.run("BEGIN");
    console(&proxy).send(&query("SHUTDOWN"));
    assert_eq!(client.ended_with(), "57P01");
    assert!(proxy.ended().success());
    // When its transaction has ended.
    let mut proxy = Proxy::start(document_with_console());
    let mut client = proxy.client(&database);
    client.run("BEGIN");
    console(&proxy).run("SHUTDOWN WAIT_FOR_SERVERS");
    client.run("SELECT 1");
    client.run("COMMIT");
    assert_eq!(client.ended_with(), "57P01");
    assert!(proxy.ended().success());
    // When it has left by itself.
    let mut proxy = Proxy::start(document_with_console());
    let mut client = proxy.client(&database);
    console(&proxy).run("SHUTDOWN WAIT_FOR_CLIENTS");
    poll("nobody new to be taken", || {
        std::net::TcpStream::connect(("127.0.0.1", proxy.port)).is_err().then_some(())
    });
    assert_eq!(client.value("SELECT 2").as_deref(), Some("2"));
    assert!(request(proxy.admin_port, "GET", "/report", &[], b"").is_some() && proxy.is_running());
    client.leave();
    assert!(proxy.ended().success());
}
