//! The monitor finds out what each server is; report, metrics and readiness say so.

use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::report::{Health, ProxyState, Role};

use super::support::client::Login;
use super::support::free_port;
use super::support::message::query;
use super::support::poll;
use super::support::proxy::{Proxy, document, local, pool_of, server};
use super::support::server::{Database, primary, standby};

#[test]
fn the_primary_is_found_whatever_the_order_of_the_servers() {
    let database = Database::create();
    let (one, two) = (server("one", primary().port), server("two", standby().port));
    for servers in [vec![one.clone(), two.clone()], vec![two, one]] {
        let mut config = document();
        config.servers = servers;
        let proxy = Proxy::start(config);
        assert_eq!(proxy.client(&database).column("SELECT pg_is_in_recovery()"), ["f"]);
        let report = poll("both servers to be known", || {
            let report = proxy.report();
            report.servers.iter().all(|server| server.role != Role::Unknown).then_some(report)
        });
        for server in &report.servers {
            let role = if server.name == "one" { Role::Primary } else { Role::Replica };
            assert_eq!((server.role, server.health), (role, Health::Up), "{}", server.name);
        }
    }
}

#[test]
fn ports_for_the_primary_and_for_replicas_go_where_they_say() {
    let database = Database::create();
    let (config, primary_port, replica_port) = three_ports();
    let mut proxy = Proxy::start(config);
    let ask = |port| {
        let mut client = Login::new(port, "app", "postgres").connect();
        client.value("SELECT pg_is_in_recovery()").unwrap()
    };
    assert_eq!(ask(proxy.port), "f");
    assert_eq!(ask(primary_port), "f");
    assert_eq!(ask(replica_port), "t");
    let mut reader = Login::new(replica_port, "app", "postgres").connect();
    assert_eq!(reader.try_query("CREATE TABLE no(n int)").sqlstate().as_deref(), Some("25006"));
    // Without a replica the port refuses, and the session goes on once there is one again.
    let standby = proxy.config.servers.pop().unwrap();
    let without = proxy.config.servers.clone();
    proxy.change(|config| config.servers = without);
    let refused = reader.try_query("SELECT 1");
    assert_eq!((refused.types().as_str(), refused.sqlstate().as_deref()), ("EZ", Some("57P03")));
    assert!(refused.error().contains("no replica"), "{}", refused.error());
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
    proxy.change(|config| config.servers.push(standby));
    poll("the replica to be back", || reader.try_query("SELECT 1").sqlstate().is_none().then_some(()));
}

#[test]
fn a_client_that_waits_for_a_primary_gets_it_when_it_comes() {
    let database = Database::create();
    let mut config = pool_of(2);
    config.pooling.checkout_timeout = DurationText::from_secs(25);
    let mut proxy = Proxy::start(config);
    let mut client = proxy.client(&database);
    let (standby, primary) = (standby().port, primary().port);
    proxy.change(|config| config.servers = vec![server("two", standby)]);
    client.send(&query("SELECT 'served'"));
    proxy.await_waiting(1);
    proxy.change(|config| config.servers = vec![server("two", standby), server("one", primary)]);
    assert_eq!(client.ready().column(), ["served"]);
}

#[test]
fn without_a_primary_clients_are_told_and_the_proxy_is_not_ready() {
    let mut config = document();
    config.servers = vec![server("gone", free_port()), server("two", standby().port)];
    config.pooling.checkout_timeout = DurationText::from_millis(200);
    let mut proxy = Proxy::spawn(config);
    poll("both servers to be known", || {
        let response = super::support::http::request(proxy.admin_port, "GET", "/report", &[], b"")?;
        let servers = response.json()["servers"].clone();
        (servers[0]["health"] == "Down" && servers[1]["role"] == "Replica").then_some(())
    });
    let ready = proxy.get("/readyz").unwrap();
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("no primary"));
    assert_eq!(proxy.get("/healthz").unwrap().status, 200);
    assert_eq!(Login::new(proxy.port, "app", "postgres").refused(), "57P03");
    let report = proxy.report();
    assert_eq!(report.state, ProxyState::Starting);
    assert!(!report.servers[0].message.is_empty(), "why it is down");
    let primary = primary().port;
    proxy.change(|config| config.servers.push(server("one", primary)));
    proxy.await_ready();
    assert_eq!(Login::new(proxy.port, "app", "postgres").connect().column("SELECT 1"), ["1"]);
}

#[test]
fn the_report_tells_servers_clients_and_totals() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(3));
    let [mut busy, mut idle] = [(); 2].map(|()| proxy.client(&database));
    idle.run("SELECT 1");
    idle.try_query("SELECT 1/0");
    busy.run("BEGIN; SELECT 1");
    // What is counted at the end of a request may be counted after its answer has arrived.
    let report = poll("both requests to be counted", || {
        Some(proxy.report()).filter(|report| report.totals.queries == 2 && report.clients.active == 1)
    });
    assert_eq!(report.state, ProxyState::Serving);
    assert_eq!(
        (report.config.generation, report.config.hash),
        (proxy.config.generation, proxy.config.hash())
    );
    assert_eq!((report.clients.connected, report.clients.active, report.clients.waiting), (2, 1, 0));
    // Of a transaction they are counted when it ends.
    assert_eq!((report.totals.transactions, report.totals.queries), (2, 2));
    assert_eq!((report.totals.server_errors, report.totals.proxy_errors), (1, 0));
    let one = &report.servers[0];
    assert_eq!(one.address, local(primary().port));
    assert_eq!((one.connections_active, one.connections_max), (1, 3));
    // The probe user of this document may not read the control file; the role is known all the same.
    assert_eq!((one.role, one.health), (Role::Primary, Health::Up));
    assert!(report.credentials.iter().any(|credential| credential.user == "app"));
}

#[test]
fn a_probe_user_with_the_right_tells_timeline_and_cluster() {
    let mut config = document();
    config.probe.user = Some(super::support::proxy::user("probe", "probe secret"));
    let proxy = Proxy::start(config);
    let server = poll("the server to be known", || {
        Some(proxy.report().servers.remove(0)).filter(|server| server.role == Role::Primary)
    });
    let identifier = primary().admin("postgres").value("SELECT system_identifier FROM pg_control_system()");
    assert_eq!((server.timeline, server.system_identifier), (Some(1), identifier));
}

#[test]
fn the_metrics_tell_what_goes_on() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(3));
    assert_eq!(proxy.login(&database).password("wrong").refused(), "28P01");
    let [mut busy, mut idle] = [(); 2].map(|()| proxy.client(&database));
    busy.run("BEGIN; SELECT 1");
    idle.run("SELECT 1");
    for (name, value) in [
        ("pgrouting_proxy_clients{state=\"active\"}", 1),
        ("pgrouting_proxy_clients{state=\"idle\"}", 1),
        ("pgrouting_proxy_clients{state=\"waiting\"}", 0),
        ("pgrouting_proxy_logins_total", 2),
        ("pgrouting_proxy_logins_failed_total", 1),
        ("pgrouting_proxy_errors_total{kind=\"client\"}", 1),
        ("pgrouting_proxy_queries_total", 1),
        ("pgrouting_proxy_config_generation", 1),
        ("pgrouting_proxy_server_connections{server=\"one\",state=\"active\"}", 1),
        ("pgrouting_proxy_server_connections_max{server=\"one\"}", 3),
        ("pgrouting_proxy_server_up{role=\"Primary\",server=\"one\"}", 1),
    ] {
        proxy.await_metric(name, value);
    }
    busy.run("COMMIT");
    // Of a transaction they are counted when it ends.
    proxy.await_metric("pgrouting_proxy_queries_total", 3);
    proxy.await_metric("pgrouting_proxy_clients{state=\"active\"}", 0);
    let text = proxy.get("/metrics").unwrap().body;
    assert!(text.contains("# HELP pgrouting_proxy_transactions_total"), "{text}");
}

#[test]
fn each_port_greets_as_its_server_would() {
    let (config, _, replica_port) = three_ports();
    let proxy = Proxy::start(config);
    let standby = |port| {
        let client = Login::new(port, "app", "postgres").connect();
        client.parameters.into_iter().find(|(name, _)| name == "in_hot_standby").unwrap().1
    };
    for _ in 0..2 {
        assert_eq!(standby(proxy.port), "off");
        assert_eq!(standby(replica_port), "on");
    }
}

fn three_ports() -> (ProxyConfig, u16, u16) {
    let mut config = document();
    let (primary_port, replica_port) = (free_port(), free_port());
    config.process.primary_listen = Some(local(primary_port));
    config.process.read_only_listen = Some(local(replica_port));
    config.servers.push(server("two", standby().port));
    config.pooling.checkout_timeout = DurationText::from_secs(3);
    (config, primary_port, replica_port)
}
