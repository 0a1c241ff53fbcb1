//! Documents: pushed, in the file, refused, and what a change does to what runs.

use std::fs;

use pgrouting_contract::config::{AuthConfig, Generation, PoolMode, ProxyConfig, Traffic};
use pgrouting_contract::console::ConsoleConfig;
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::stage::Stage;
use pgrouting_contract::tls::ClientTlsMode;

use super::support::certificates::{Ca, tls};
use super::support::client::{Client, Login};
use super::support::http::request;
use super::support::message::query;
use super::support::poll;
use super::support::proxy::{Proxy, command, document, new_directory, pool_of, server, user};
use super::support::server::{Database, primary, standby};

#[test]
fn a_pushed_document_is_taken_whole_or_refused_whole() {
    let proxy = Proxy::start(document());
    let with = |generation, change: fn(&mut ProxyConfig)| {
        let mut config = proxy.config.clone();
        config.generation = Generation(generation);
        change(&mut config);
        config
    };
    let larger: fn(&mut ProxyConfig) = |config| config.pooling.max_server_connections = 9;
    for (config, status, outcome) in [
        (with(1, |_| {}), 200, "Unchanged"),
        (with(1, larger), 409, "Stale"),
        (with(5, larger), 200, "Applied"),
        (with(5, larger), 200, "Unchanged"),
        (with(4, |_| {}), 409, "Stale"),
    ] {
        let answer = proxy.put(&config, 0);
        assert_eq!((answer.status, answer.json()["outcome"].as_str().unwrap()), (status, outcome));
    }
    let bad = with(6, |config| {
        config.pooling.max_server_connections = 0;
        config.servers[0].name = "Not a name".to_owned();
    });
    let answer = proxy.put(&bad, 0);
    assert_eq!(answer.status, 422);
    let json = answer.json();
    assert_eq!((json["outcome"].as_str(), json["generation"].as_u64()), (Some("Refused"), Some(5)));
    let reasons = json["reasons"].to_string();
    assert!(
        reasons.contains("pooling.maxServerConnections") && reasons.contains("servers[0].name"),
        "{reasons}"
    );
    let report = proxy.report();
    assert_eq!(report.config.generation, Generation(5));
    assert_eq!(report.config.hash, with(5, larger).hash());
    assert_eq!(report.config.refused.unwrap().generation, Some(Generation(6)));
    assert_eq!(report.servers[0].connections_max, 9);
}

#[test]
fn what_is_no_document_is_refused() {
    let proxy = Proxy::start(document());
    let put = |body: &[u8]| request(proxy.admin_port, "PUT", "/config", &[], body).unwrap();
    let text = String::from_utf8(proxy.config.canonical_bytes()).unwrap();
    let unknown = text.replacen('{', "{\"surprise\":1,", 1).replace("\"generation\":1", "\"generation\":2");
    let restart =
        text.replace("\"generation\":1", "\"generation\":2").replace("\"workers\":2", "\"workers\":3");
    let version = text.replace("\"version\":1", "\"version\":2");
    for (body, reason) in [
        (&b"\xff\xfe"[..], "document"),
        (b"", "document"),
        (b"servers: [", "document"),
        (unknown.as_bytes(), "surprise"),
        (restart.as_bytes(), "process"),
        (version.as_bytes(), "version"),
    ] {
        let answer = put(body);
        assert_eq!(answer.status, 422, "{}", answer.body);
        assert!(answer.json()["reasons"].to_string().contains(reason), "{}", answer.body);
    }
    assert!([413, 422].contains(&put(&vec![b' '; 600 * 1024]).status));
    assert_eq!(proxy.report().config.generation, Generation(1));
}

#[test]
fn a_leader_that_was_replaced_is_not_listened_to() {
    let proxy = Proxy::start(document());
    let numbered = |generation| ProxyConfig { generation: Generation(generation), ..proxy.config.clone() };
    assert_eq!(proxy.put(&numbered(2), 7).status, 200);
    assert_eq!(proxy.put(&numbered(3), 6).status, 409);
    assert_eq!(proxy.report().config.generation, Generation(2));
    assert_eq!(proxy.put(&numbered(3), 7).status, 200);
    let headers = [("x-pgrouting-epoch", "not a number")];
    let answer =
        request(proxy.admin_port, "PUT", "/config", &headers, &numbered(4).canonical_bytes()).unwrap();
    assert_eq!(answer.status, 400);
}

#[test]
fn report_and_config_ask_for_the_token() {
    let directory = new_directory();
    let token = directory.join("token");
    fs::write(&token, "open sesame\n").unwrap();
    let mut config = document();
    config.process.admin_token_file = Some(token.display().to_string());
    let proxy = Proxy::start(config);
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        request(proxy.admin_port, method, path, headers, &proxy.config.canonical_bytes()).unwrap().status
    };
    for headers in [
        &[][..],
        &[("Authorization", "Bearer wrong")],
        &[("Authorization", "Bearer open sesame2")],
        &[("Authorization", "open sesame")],
    ] {
        assert_eq!(ask("PUT", "/config", headers), 401);
        assert_eq!(ask("GET", "/report", headers), 401);
    }
    let right = [("Authorization", "Bearer open sesame")];
    assert_eq!(ask("PUT", "/config", &right), 200);
    assert_eq!(ask("GET", "/report", &right), 200);
    assert_eq!(ask("GET", "/healthz", &[]), 200);
    assert_eq!(proxy.get("/report").unwrap().status, 404, "not where everyone may ask");
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_changed_file_is_taken_by_itself_when_its_generation_is_higher() {
    let proxy = Proxy::start(document());
    let path = proxy.directory.join("proxy.yaml");
    let mut config = proxy.config.clone();
    config.generation = Generation(2);
    config.pooling.max_server_connections = 7;
    fs::write(&path, config.canonical_bytes()).unwrap();
    poll("the file to be taken", || (proxy.report().config.hash == config.hash()).then_some(()));
    // A bad file is reported and changes nothing; an old one does not undo what was pushed.
    fs::write(&path, "generation: 3\nversion: 1\n").unwrap();
    poll("the bad file to be reported", || proxy.report().config.refused);
    config.generation = Generation(9);
    assert_eq!(proxy.put(&config, 0).status, 200);
    fs::write(&path, proxy.config.canonical_bytes()).unwrap();
    proxy.signal("HUP");
    poll("the old file to be seen", || proxy.log().contains("the file is not taken").then_some(()));
    assert_eq!(proxy.report().config.generation, Generation(9));
}

#[test]
fn a_hangup_signal_reads_the_file_again_even_with_the_same_generation() {
    let proxy = Proxy::start(document());
    let mut config = proxy.config.clone();
    config.pooling.max_server_connections = 6;
    let text = format!("# by hand\n{}", String::from_utf8(config.canonical_bytes()).unwrap());
    fs::write(proxy.directory.join("proxy.yaml"), text).unwrap();
    proxy.signal("HUP");
    poll("the file to be taken", || (proxy.report().servers[0].connections_max == 6).then_some(()));
    assert_eq!(proxy.report().config.hash, config.hash());
}

#[test]
fn a_bad_document_at_the_start_ends_the_process_with_the_reason() {
    for (text, reason) in [
        ("version: 1\ngeneration: 1\npool: x\nservers: []\nauth: {type: UserList, users: []}\n", "servers"),
        ("version: 1\nsurprise: 1\n", "surprise"),
        ("a: [", "document"),
    ] {
        let directory = new_directory();
        fs::write(directory.join("proxy.yaml"), text).unwrap();
        let output = command(&directory).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && log.contains(reason), "{log}");
        let checked = command(&directory).arg("--check").output().unwrap();
        assert!(!checked.status.success());
        fs::remove_dir_all(&directory).unwrap();
    }
    let directory = new_directory();
    let missing = command(&directory).output().unwrap();
    assert!(!missing.status.success());
    assert!(String::from_utf8_lossy(&missing.stderr).contains("proxy.yaml"));
    fs::write(directory.join("proxy.yaml"), document().canonical_bytes()).unwrap();
    assert!(command(&directory).arg("--check").status().unwrap().success());
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_document_that_a_person_writes_is_read() {
    let database = Database::create();
    let config = document();
    let directory = new_directory();
    let process = &config.process;
    let yaml = format!(
        "version: 1\ngeneration: 1\npool: by-hand\nprocess:\n  listen: {}\n  adminListen: {}\n  probeListen: {}\n\
         servers:\n  - {{name: one, host: localhost, port: {}}}\nauth:\n  type: UserList\n  users:\n    \
         - name: app\n      password: app secret\npooling:\n  checkoutTimeout: 1m\n",
        process.listen,
        process.admin_listen,
        process.probe_listen,
        primary().port
    );
    fs::write(directory.join("proxy.yaml"), yaml).unwrap();
    let mut proxy = Proxy::spawn_in(directory, config);
    proxy.await_ready();
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
    assert_eq!(proxy.report().servers[0].connections_max, 20);
}

#[test]
fn case_168_other_servers_come_and_go_without_a_broken_connection() {
    let database = Database::create();
    let mut proxy = Proxy::start(pool_of(3));
    let [mut busy, mut idle] = [(); 2].map(|()| proxy.client(&database));
    busy.run("CREATE TABLE ledger(n int)");
    busy.run("BEGIN");
    busy.run("INSERT INTO ledger VALUES (1)");
    idle.run("SELECT 1");
    let before = database.backends();
    let standby = standby().port;
    proxy.change(|config| config.servers.push(server("two", standby)));
    busy.run("INSERT INTO ledger VALUES (2)");
    poll("the standby to be found", || {
        (proxy.report().servers.last()?.role == pgrouting_contract::report::Role::Replica).then_some(())
    });
    proxy.change(|config| drop(config.servers.pop()));
    assert_eq!(idle.column("SELECT 1"), ["1"]);
    assert_eq!(busy.run("COMMIT").tags(), ["COMMIT"]);
    assert_eq!(idle.column("SELECT count(*) FROM ledger"), ["2"]);
    assert_eq!(database.backends(), before, "the same server processes");
}

#[test]
fn limits_users_and_names_change_without_a_broken_connection() {
    let database = Database::create();
    let mut proxy = Proxy::start(pool_of(2));
    let [mut first, mut second, mut third] = [(); 3].map(|()| proxy.client(&database));
    first.run("BEGIN; SELECT 1");
    second.run("BEGIN; SELECT 1");
    third.send(&query("SELECT 'served'"));
    proxy.await_waiting(1);
    let before = database.backends();
    proxy.change(|config| config.pooling.max_server_connections = 3);
    assert_eq!(third.ready().column(), ["served"], "who waited gets the new room");
    proxy.change(|config| {
        config.auth =
            AuthConfig::UserList { users: vec![user("app", "app secret"), user("other", "other secret")] };
        config.servers[0].name = "renamed".to_owned();
        config.servers[0].weight = 7;
    });
    assert_eq!(Login::new(proxy.port, "other", &database.name).connect().column("SELECT 1"), ["1"]);
    assert_eq!(Login::new(proxy.port, "app_b", &database.name).refused(), "28P01");
    first.run("COMMIT");
    second.run("COMMIT");
    assert!(before.iter().all(|pid| database.backends().contains(pid)));
    proxy.change(|config| config.pooling.max_server_connections = 1);
    for client in [&mut first, &mut second, &mut third] {
        assert_eq!(client.column("SELECT 1"), ["1"]);
    }
    poll("the surplus to be closed", || (database.backends().len() == 1).then_some(()));
    assert_eq!(proxy.report().servers[0].name, "renamed");
}

type Change = fn(&mut ProxyConfig);

#[test]
fn what_a_document_does_not_change_keeps_its_connections() {
    let database = Database::create();
    let other = Database::create();
    let ca = Ca::new();
    let mut config = document();
    config.tls = tls(Some(ca.accepting(ClientTlsMode::Allow)), None);
    let mut proxy = Proxy::start(config);
    let mut client = proxy.client(&database);
    let mut idle = proxy.client(&other);
    let mut pids = || (client.backend(), idle.backend());
    let before = pids();
    let changes: [(&str, Change); 14] = [
        ("another server", |config| config.servers.push(server("two", standby().port))),
        ("its weight", |config| config.servers[1].weight = 7),
        ("no other server", |config| config.servers.truncate(1)),
        ("a user", |config| {
            if let AuthConfig::UserList { users } = &mut config.auth {
                users.push(user("other", &super::support::server::password_of("other")));
            }
        }),
        ("no such user", |config| {
            if let AuthConfig::UserList { users } = &mut config.auth {
                users.pop();
            }
        }),
        ("limits", |config| config.pooling.max_server_connections = 9),
        ("limits of users", |config| config.pooling.max_server_connections_per_user = Some(3)),
        ("times", |config| config.pooling.query_timeout = DurationText::from_secs(600)),
        ("probes", |config| config.probe.interval = DurationText::from_millis(500)),
        ("the stage", |config| config.stage = Stage::Split),
        ("the share", |config| config.split.percent = 7),
        ("the console", |config| config.console = Some(ConsoleConfig::default())),
        ("TLS to clients", |config| config.tls = None),
        ("the end", |config| config.drain_timeout = DurationText::from_secs(7)),
    ];
    for (what, change) in changes {
        proxy.change(change);
        assert_eq!(pids(), before, "{what}");
    }
    // What does change is renewed: settings that connections start with.
    proxy.change(|config| drop(config.pooling.parameters.insert("work_mem".to_owned(), "5MB".to_owned())));
    let after = pids();
    assert!(after.0 != before.0 && after.1 != before.1);
}

#[test]
fn the_mode_and_the_limit_of_clients_change_for_who_comes_next() {
    let database = Database::create();
    let mut proxy = Proxy::start(pool_of(2));
    let mut early = proxy.client(&database);
    proxy.change(|config| {
        config.pooling.mode = PoolMode::Session;
        config.pooling.max_client_connections = 2;
    });
    let mut late = proxy.client(&database);
    assert_eq!(proxy.login(&database).refused(), "53300");
    late.run("CREATE TEMP TABLE mine(n int)");
    early.run("SELECT 1");
    assert_eq!(late.column("SELECT count(*) FROM mine"), ["0"]);
}

#[test]
fn paused_traffic_waits_and_goes_on() {
    let database = Database::create();
    let mut config = pool_of(2);
    config.pooling.checkout_timeout = DurationText::from_millis(200);
    let mut proxy = Proxy::start(config);
    let [mut busy, mut waiting] = [(); 2].map(|()| proxy.client(&database));
    busy.run("BEGIN; SELECT 1");
    proxy.change(|config| config.pooling.traffic = Traffic::Paused);
    waiting.send(&query("SELECT 'after the pause'"));
    proxy.await_waiting(1);
    assert_eq!(busy.run("SELECT 1").status(), 'T');
    assert_eq!(busy.run("COMMIT").status(), 'I');
    proxy.change(|config| config.pooling.traffic = Traffic::Open);
    assert_eq!(waiting.ready().column(), ["after the pause"]);
}

/// A pause outlives the process: whoever comes to a new one waits before its first ReadyForQuery, which needs what a server
/// says of itself, for longer than a login or a wait for a connection may take.
#[test]
fn proxy_that_starts_while_traffic_is_paused_holds_clients_until_it_is_over() {
    let database = Database::create();
    let mut config = pool_of(2);
    config.pooling.traffic = Traffic::Paused;
    config.pooling.checkout_timeout = DurationText::from_millis(200);
    config.pooling.client_login_timeout = DurationText::from_secs(1);
    let mut proxy = Proxy::start(config);
    let login = proxy.login(&database);
    let client = std::thread::spawn(move || login.connect().column("SELECT 'after the pause'"));
    proxy.await_waiting(1);
    proxy.change(|config| config.pooling.traffic = Traffic::Open);
    assert_eq!(client.join().unwrap(), ["after the pause"]);
}

#[test]
fn a_server_that_is_removed_ends_nobody_in_a_transaction() {
    let database = Database::create();
    let mut proxy = Proxy::start(pool_of(2));
    let mut busy = proxy.client(&database);
    busy.run("BEGIN; SELECT 1");
    let standby = standby().port;
    proxy.change(|config| config.servers = vec![server("two", standby)]);
    assert_eq!(busy.run("SELECT 1").status(), 'T');
    assert_eq!(busy.run("COMMIT").status(), 'I');
    let primary = primary().port;
    proxy.change(|config| config.servers.push(server("one", primary)));
    let mut client: Client = poll("the primary to be back", || Client::connect(&proxy.login(&database)).ok());
    assert_eq!(client.column("SELECT pg_is_in_recovery()"), ["f"]);
    assert_eq!(busy.column("SELECT 1"), ["1"]);
}
