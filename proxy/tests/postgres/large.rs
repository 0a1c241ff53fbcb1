//! Rows, parameters and copies of many megabytes pass through, and the proxy does not hold them.

use super::support::client::Client;
use super::support::message::{bind_formatted, copy_data, copy_done, execute, parse, query, sync};
use super::support::proxy::{Proxy, pool_of};
use super::support::server::Database;

const BYTES: usize = 20 * 1024 * 1024;

/// What the proxy may grow by while such things pass, in KiB: buffers of a few connections, and what the allocator
/// keeps of them; less than any of these things.
const GROWTH_KIB: u64 = 19 * 1024;

#[test]
fn a_row_of_20_mib_is_passed_on() {
    let (database, proxy) = pool();
    let mut client = proxy.client(&database);
    let before = proxy.resident_kib();
    for _ in 0..2 {
        let answer = client.run(&format!("SELECT repeat('y', {BYTES})"));
        assert_eq!(answer.of('D').next().unwrap().bytes.len(), BYTES + 5 + 2 + 4);
    }
    assert_bounded(&proxy, before);
    assert_eq!(client.column("SELECT 1"), ["1"]);
}

#[test]
fn a_parameter_of_100_mib_is_passed_on() {
    let (database, proxy) = pool();
    let mut client = proxy.client(&database);
    let before = proxy.resident_kib();
    let bytes = 5 * BYTES;
    let value = vec![b'x'; bytes];
    for name in ["", "named"] {
        let bind = bind_formatted("", name, &[1], &[Some(&value)], &[]);
        let request = [parse(name, "SELECT octet_length($1::bytea)"), bind, execute("", 0), sync()].concat();
        assert_eq!(client.ask(&request).column(), [bytes.to_string()]);
    }
    assert_bounded(&proxy, before);
    assert_eq!(client.column("SELECT 1"), ["1"]);
}

#[test]
fn a_flood_of_notices_is_not_held() {
    let (database, proxy) = pool();
    let mut client = proxy.client(&database);
    client.run("SELECT 1");
    let before = proxy.resident_kib();
    let notices = 100_000;
    client.send(&query(&format!(
        "DO $$ BEGIN FOR i IN 1..{notices} LOOP RAISE NOTICE '%', repeat('n', 400); END LOOP; END $$"
    )));
    // They have begun to come and are not read.
    client.until('N');
    assert_bounded(&proxy, before);
    assert_eq!(client.ready().of('N').count(), notices - 1);
    assert_bounded(&proxy, before);
    assert_eq!(client.column("SELECT 1"), ["1"]);
}

#[test]
fn a_query_of_20_mib_is_passed_on() {
    let (database, proxy) = pool();
    let mut client = proxy.client(&database);
    let before = proxy.resident_kib();
    assert_eq!(client.column(&format!("SELECT length('{}')", "x".repeat(BYTES))), [BYTES.to_string()]);
    assert_bounded(&proxy, before);
}

#[test]
fn copies_of_20_mib_pass_both_ways() {
    let (database, proxy) = pool();
    let mut client = proxy.client(&database);
    client.run("CREATE UNLOGGED TABLE wide(line text)");
    let before = proxy.resident_kib();
    copy_in_and_out(&mut client, BYTES);
    assert_bounded(&proxy, before);
}

/// Copies that much into a table `wide` and out of it.
pub fn copy_in_and_out(client: &mut Client, bytes: usize) {
    let line = [vec![b'z'; 1023], b"\n".to_vec()].concat();
    let piece = copy_data(&line.repeat(64));
    client.send(&query("COPY wide FROM STDIN"));
    client.until('G');
    (0..bytes / (64 * 1024)).for_each(|_| client.send(&piece));
    assert_eq!(client.ask(&copy_done()).tags(), [format!("COPY {}", bytes / 1024)]);
    let out = client.run("COPY wide TO STDOUT");
    assert_eq!(out.of('d').map(|message| message.body().len()).sum::<usize>(), bytes);
}

#[test]
fn case_127_slow_readers_hold_nothing_in_the_proxy() {
    let (database, proxy) = pool();
    let mut clients: Vec<_> = (0..5).map(|_| proxy.client(&database)).collect();
    clients.iter_mut().for_each(|client| drop(client.run("SELECT 1")));
    let before = proxy.resident_kib();
    for client in &mut clients {
        client.send(&query(&format!("SELECT repeat('y', {BYTES})")));
    }
    // Each answer has begun to come and is not read: the first bytes are there.
    clients.iter_mut().for_each(|client| drop(client.until('T')));
    assert_bounded(&proxy, before);
    for client in &mut clients {
        assert_eq!(client.ready().types(), "DCZ");
        assert_eq!(client.column("SELECT length(repeat('z', 1000000))"), ["1000000"]);
    }
    assert_bounded(&proxy, before);
}

#[test]
fn a_client_that_sends_without_reading_blocks_nobody() {
    let (database, proxy) = pool();
    let [mut greedy, mut other] = [(); 2].map(|()| proxy.client(&database));
    let before = proxy.resident_kib();
    let requests = 2_000;
    let request = query("SELECT repeat('q', 10000)");
    let (mut writer, reader) = greedy.split();
    std::thread::scope(|scope| {
        scope.spawn(move || (0..requests).for_each(|_| writer.send(&request)));
        for _ in 0..20 {
            assert_eq!(other.column("SELECT 1"), ["1"]);
        }
        let answer = reader.ready_times(requests);
        assert_eq!(answer.of('D').count(), requests);
    });
    assert_bounded(&proxy, before);
}

fn pool() -> (Database, Proxy) {
    (Database::create(), Proxy::start(pool_of(6)))
}

fn assert_bounded(proxy: &Proxy, before: u64) {
    let now = proxy.resident_kib();
    assert!(now < before + GROWTH_KIB, "{before} KiB before, {now} KiB now");
}

#[test]
fn a_backlog_to_a_slow_server_is_worked_off() {
    let (database, proxy) = pool();
    let mut client = proxy.client(&database);
    client.run("CREATE UNLOGGED TABLE wide(line text)");
    let line = [vec![b'z'; 1023], b"\n".to_vec()].concat();
    let mut holder = database.direct();
    // Somewhere among these sizes all that is left is in the proxy when the server begins to read.
    for pieces in (4..52).map(|step| step * 3) {
        holder.run("BEGIN; LOCK TABLE wide");
        let data = copy_data(&line.repeat(64)).repeat(pieces);
        let request = [query("COPY wide FROM STDIN"), data, copy_done()].concat();
        let (mut writer, reader) = client.split();
        std::thread::scope(|scope| {
            scope.spawn(move || writer.send(&request));
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                           AND wait_event_type = 'Lock'";
            database.await_value(waiting, "1");
            holder.run("ROLLBACK");
            assert_eq!(reader.ready().tags(), [format!("COPY {}", pieces * 64)]);
        });
        holder.run("TRUNCATE wide");
    }
}

#[test]
fn requests_that_wait_for_an_earlier_answer_are_not_collected_without_a_limit() {
    let (database, proxy) = pool();
    let [mut client, mut other] = [(); 2].map(|()| proxy.client(&database));
    client.run("CREATE TABLE held(n int)");
    let mut holder = database.direct();
    holder.run("BEGIN; LOCK TABLE held");
    let before = proxy.resident_kib();
    // The Parse waits for the query's outcome, and so does all that is behind it.
    let batches = 640;
    let comment = "x".repeat(64 * 1024 - 64);
    let batch = [query(&format!("SELECT 1 /* {comment} */")), sync()].concat();
    let first = [query("SELECT * FROM held"), parse("a", "SELECT 1"), sync()].concat();
    let (mut writer, reader) = client.split();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            writer.send(&first);
            (0..batches).for_each(|_| writer.send(&batch));
        });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                       AND wait_event_type = 'Lock'";
        database.await_value(waiting, "1");
        for _ in 0..500 {
            assert_eq!(other.column("SELECT 1"), ["1"]);
        }
        assert_bounded(&proxy, before);
        holder.run("ROLLBACK");
        reader.ready_times(2 + 2 * batches);
    });
}
