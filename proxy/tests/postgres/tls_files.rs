//! Files of TLS: replaced under open connections, broken, and missing at the start.

use std::fs;

use pgrouting_contract::tls::{ClientTlsMode, ServerTlsMode, TlsFilesState};

use super::support::certificates::{Ca, secure_primary, tls};
use super::support::client::Client;
use super::support::poll;
use super::support::proxy::{Proxy, pool_of};
use super::support::secure::{Proof, Secure};
use super::support::server::Database;

const BROKEN: &str = "pgrouting_proxy_tls_files_broken_total{side=\"client\"}";

#[test]
fn a_new_certificate_is_shown_to_new_clients_and_open_connections_stay() {
    let (old, new) = (Ca::new(), Ca::new());
    let database = Database::create();
    let mut config = pool_of(2);
    config.tls = tls(Some(old.accepting(ClientTlsMode::Require)), None);
    let proxy = Proxy::start(config);
    let login = proxy.login(&database).proving(Proof::Bound);
    let (by_old, by_new) =
        (login.clone().over(&Secure::new(&old, None)), login.over(&Secure::new(&new, None)));
    let mut before = by_old.connect();
    assert_eq!(before.column("SELECT 1"), ["1"]);
    assert!(Client::connect(&by_new).is_err(), "the old certificate is shown");

    new.issue("localhost", &["localhost"]).write(&old.directory, "proxy");
    let mut after = poll("the new certificate to be shown", || Client::connect(&by_new).ok());
    assert_eq!(after.column("SELECT 2"), ["2"]);
    assert!(Client::connect(&by_old).is_err(), "no new handshake sees the old one");
    assert_eq!(before.column("SELECT 3"), ["3"], "who was there before goes on");
}

#[test]
fn broken_files_leave_the_last_good_ones_in_use_and_are_told_of() {
    let ca = Ca::new();
    let database = Database::create();
    let mut config = pool_of(2);
    config.tls = tls(Some(ca.accepting(ClientTlsMode::Require)), None);
    let mut proxy = Proxy::start(config);
    let login = proxy.login(&database).over(&Secure::new(&ca, None));
    let state = |proxy: &Proxy| {
        let report = proxy.report().tls;
        assert_eq!(report.len(), 1, "{report:?}");
        report.into_iter().next().unwrap()
    };
    assert_eq!((state(&proxy).state, state(&proxy).message), (TlsFilesState::Valid, String::new()));
    assert!(state(&proxy).not_after.unwrap().starts_with("4096-"), "the default of rcgen");
    assert!(proxy.metric("pgrouting_proxy_tls_certificate_expires_seconds{side=\"client\"}") > 1_000_000_000);

    // A certificate without its key.
    fs::write(ca.directory.join("proxy.key"), ca.issue("x", &[]).key).unwrap();
    proxy.await_metric(BROKEN, 1);
    assert_eq!(state(&proxy).state, TlsFilesState::Broken);
    assert!(state(&proxy).message.contains("proxy.key"), "{}", state(&proxy).message);
    assert_eq!(login.connect().column("SELECT 1"), ["1"]);
    // A document with the same settings is taken, and nothing is lost by it.
    proxy.change(|config| config.pooling.max_server_connections = 3);
    assert_eq!(login.connect().column("SELECT 2"), ["2"]);

    fs::remove_file(ca.directory.join("proxy.crt")).unwrap();
    proxy.await_metric(BROKEN, 2);
    assert_eq!(login.connect().column("SELECT 3"), ["3"]);
    assert!(proxy.log().contains("the last good ones are"));

    ca.issue("localhost", &["localhost"]).write(&ca.directory, "proxy");
    poll("the files to be good again", || (state(&proxy).state == TlsFilesState::Valid).then_some(()));
    assert_eq!(login.connect().column("SELECT 4"), ["4"]);
}

#[test]
fn a_proxy_does_not_start_on_broken_files_and_says_why() {
    let ca = Ca::new();
    let mut config = pool_of(2);
    let mut accepting = ca.accepting(ClientTlsMode::Allow);
    accepting.key_file = ca.file();
    config.tls = tls(Some(accepting), Some(ca.connecting(ServerTlsMode::VerifyFull)));
    fs::write(ca.directory.join("ca.crt"), "no certificate").unwrap();
    let mut proxy = Proxy::spawn(config);
    assert!(!proxy.ended().success());
    let log = proxy.log();
    assert!(log.contains("tls.client: ") && log.contains("tls.server: "), "{log}");
    assert!(log.contains("ca.crt"), "{log}");
}

#[test]
fn a_document_with_files_that_cannot_be_used_is_refused_and_changes_nothing() {
    let ca = Ca::new();
    let database = Database::create();
    let mut config = pool_of(2);
    config.tls = tls(Some(ca.accepting(ClientTlsMode::Allow)), None);
    let mut proxy = Proxy::start(config);
    let mut wrong = proxy.config.clone();
    wrong.generation.0 += 1;
    let mut accepting = ca.accepting(ClientTlsMode::Require);
    accepting.client_ca_file = Some("/no/such/ca.crt".to_owned());
    wrong.tls = tls(Some(accepting), None);
    let answer = proxy.put(&wrong, 0);
    assert_eq!(answer.status, 422, "{}", answer.body);
    assert!(answer.body.contains("tls.client: /no/such/ca.crt"), "{}", answer.body);
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"], "the mode is what it was");
    // What is right is in effect before the answer.
    let accepting = ca.accepting(ClientTlsMode::Require);
    proxy.change(|config| config.tls = tls(Some(accepting), None));
    assert_eq!(proxy.login(&database).refused(), "28000");
    proxy.change(|config| config.tls = None);
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
    assert!(proxy.report().tls.is_empty());
}

#[test]
fn a_new_ca_of_servers_counts_for_new_connections() {
    let ca = secure_primary();
    let database = Database::create();
    let mine = Ca::new();
    let mut config = pool_of(2);
    let mut connecting = mine.connecting(ServerTlsMode::VerifyCa);
    connecting.ca_file = mine.file();
    config.tls = tls(None, Some(connecting));
    let mut proxy = Proxy::spawn(config);
    poll("the certificate to be refused", || {
        let report = proxy.get("/metrics").map(|_| proxy.report())?;
        report.servers[0].message.contains("UnknownIssuer").then_some(())
    });
    fs::write(mine.directory.join("ca.crt"), ca.pem()).unwrap();
    proxy.await_ready();
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(proxy.client(&database).column(sql), ["t"]);
}
