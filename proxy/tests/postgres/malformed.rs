//! Whatever a peer sends, it ends at most its own connection.

use super::support::client::Client;
use super::support::message::{Answer, message, query};
use super::support::proxy::{Proxy, pool_of};
use super::support::server::Database;

#[test]
fn case_113_a_message_of_no_type_ends_only_its_connection() {
    let (database, proxy) = pool();
    let mut bystander = proxy.client(&database);
    let backend = bystander.backend();
    for bytes in [&b"m\0\0\0\x04"[..], b"p\0\0\0\x04", b"\0\0\0\0\x04", b"\xff\0\0\0\x04"] {
        let mut client = proxy.client(&database);
        client.run("SELECT 1");
        client.send(bytes);
        assert_eq!(client.ended_with(), "08P01", "{bytes:?}");
        assert_eq!(bystander.backend(), backend);
    }
}

#[test]
fn a_length_that_cannot_be_ends_only_its_connection() {
    let (database, proxy) = pool();
    let mut bystander = proxy.client(&database);
    let backend = bystander.backend();
    for length in [0, 3, -1, i32::MIN, i32::MAX] {
        let mut client = proxy.client(&database);
        client.send(&[&b"Q"[..], &length.to_be_bytes(), b"SELECT 1\0"].concat());
        let code = client.ended_with();
        assert!(["08P01", "54000"].contains(&code.as_str()), "{length}: {code}");
        assert_eq!(bystander.backend(), backend);
    }
}

#[test]
fn a_message_that_is_longer_than_the_pool_allows_is_refused() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.pooling.max_message_bytes = 10_000;
    let proxy = Proxy::start(config);
    let mut client = proxy.client(&database);
    assert_eq!(client.column(&format!("SELECT length('{}')", "x".repeat(9_000))), ["9000"]);
    client.send(&query(&format!("SELECT length('{}')", "x".repeat(10_000))));
    assert_eq!(client.ended_with(), "54000");
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
}

#[test]
fn case_110_what_is_no_postgres_client_is_turned_away() {
    let (database, proxy) = pool();
    let version_4 = b"\0\0\0\x17\0\x04\0\0user\0postgres\0\0";
    let version_2 = b"\0\0\0\x17\0\x02\0\0user\0postgres\0\0";
    for bytes in [version_4, version_2] {
        assert_eq!(first_answer(&proxy, bytes).sqlstate().as_deref(), Some("0A000"));
    }
    for bytes in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\0\0\0\0",
        b"\x7f\xff\xff\xff\0\x03\0\0",
        b"\0\0\0\x04\0",
        b"\0\0\0\x07\0\x03\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ] {
        assert_eq!(first_answer(&proxy, bytes).messages, [], "{bytes:?}");
    }
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
}

#[test]
fn case_111_a_startup_message_must_name_a_user_and_end() {
    let (_database, proxy) = pool();
    let nobody = b"\0\0\0\x18\0\x03\0\0database\0cases\0\0";
    assert_eq!(first_answer(&proxy, nobody).sqlstate().as_deref(), Some("28000"));
    let endless = b"\0\0\0\x0d\0\x03\0\0user\0";
    assert_eq!(first_answer(&proxy, endless).sqlstate().as_deref(), Some("08P01"));
    let longest = [&10_001_u32.to_be_bytes()[..], b"\0\x03\0\0", &[b'x'; 9_993]].concat();
    assert_eq!(first_answer(&proxy, &longest).messages, [], "longer than PostgreSQL takes");
}

#[test]
fn the_database_is_the_users_name_where_none_is_given() {
    let (_database, proxy) = pool();
    let mut client = Client::open(proxy.port);
    client.send(b"\0\0\0\x12\0\x03\0\0user\0app\0\0");
    let refusal = client.log_in("app secret").unwrap_err();
    assert_eq!(refusal.sqlstate(), "3D000", "there is no database app");
}

#[test]
fn case_176_nothing_but_the_password_is_taken_before_the_login() {
    let (database, proxy) = pool();
    for early in [query("SELECT 1"), message(b'X', |_| {}), message(b'p', |_| {}), vec![b'p', 0xff, 0, 0, 0]]
    {
        let mut client = Client::open(proxy.port);
        let startup = b"\0\0\0\x28\0\x03\0\0user\0app\0database\0postgres\0\0\0\0\0\0\0\0";
        let startup = [&38_u32.to_be_bytes()[..], &startup[4..38]].concat();
        client.send(&[startup, early].concat());
        let answer = client.rest();
        assert!(!answer.types().contains('Z') && !answer.types().contains('D'), "{answer:?}");
    }
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
}

#[test]
fn encryption_requests_are_answered_and_not_taken_for_ever() {
    let (database, proxy) = pool();
    let (ssl, gss) = (b"\0\0\0\x08\x04\xd2\x16\x2f", b"\0\0\0\x08\x04\xd2\x16\x30");
    let mut client = Client::open(proxy.port);
    client.send(&[&ssl[..], gss].concat());
    client.expect_bytes(b"NN");
    let user = format!("user\0app\0database\0{}\0\0", database.name);
    let length = u32::try_from(user.len() + 8).unwrap();
    client.send(&[&length.to_be_bytes()[..], b"\0\x03\0\0", user.as_bytes()].concat());
    client.log_in("app secret").unwrap();
    assert_eq!(client.column("SELECT 1"), ["1"]);
    let mut endless = Client::open(proxy.port);
    endless.send(&ssl.repeat(100));
    endless.drain();
}

#[test]
fn a_client_that_does_not_log_in_in_time_is_closed() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.pooling.client_login_timeout = pgrouting_contract::duration::DurationText::from_millis(300);
    let proxy = Proxy::start(config);
    let mut silent = Client::open(proxy.port);
    let mut slow = Client::open(proxy.port);
    slow.send(b"\0\0\0\x20\0\x03\0\0user\0a");
    assert!(silent.next().is_none());
    assert!(slow.next().is_none());
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
}

#[test]
fn random_bytes_end_only_their_connection() {
    let (database, proxy) = pool();
    let mut bystander = proxy.client(&database);
    let mut state = 0x5eed_0002_u64;
    for round in 0..60 {
        let bytes: Vec<u8> = (0..64)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56).to_le_bytes()[0]
            })
            .collect();
        let mut client = if round % 2 == 0 { Client::open(proxy.port) } else { proxy.client(&database) };
        client.send(&bytes);
        client.hang_up();
        client.drain();
        assert_eq!(bystander.column("SELECT 1"), ["1"], "round {round}: {bytes:?}");
    }
}

fn pool() -> (Database, Proxy) {
    (Database::create(), Proxy::start(pool_of(1)))
}

/// What comes for these first bytes, to the end of the connection.
fn first_answer(proxy: &Proxy, bytes: &[u8]) -> Answer {
    let mut client = Client::open(proxy.port);
    client.send(bytes);
    client.hang_up();
    client.rest()
}
