//! Nothing of one client is ever visible to the next one on the same server connection, and nothing of it is lost to
//! the client itself.

use pgrouting_contract::config::AuthConfig;

use super::support::client::{Client, Login};
use super::support::message::{bind, close, execute, function_call, parse, query, sync};
use super::support::proxy::{Proxy, pool_of, session_pool_of, user};
use super::support::server::{Database, password_of};

/// Functions, a procedure and a role that the statements use.
const OBJECTS: &str = "
    CREATE FUNCTION sets() RETURNS int LANGUAGE plpgsql AS $$ BEGIN SET geqo = off; RETURN 1; END $$;
    CREATE FUNCTION calls_sets() RETURNS int LANGUAGE sql AS 'SELECT sets()';
    CREATE FUNCTION locks() RETURNS bool LANGUAGE sql AS 'SELECT pg_advisory_lock(42) IS NULL';
    CREATE FUNCTION creates() RETURNS int LANGUAGE plpgsql AS
        $$ BEGIN EXECUTE 'CREATE TEMP TABLE scratch (n int)'; RETURN 1; END $$;
    CREATE FUNCTION names(n text, v text) RETURNS text LANGUAGE sql AS 'SELECT set_config(n, v, false)';
    CREATE PROCEDURE listens() LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'LISTEN depot'; END $$;
    GRANT other TO app";

/// What is looked at: the settings and all other state that the statements below leave behind.
const LOOK: &str = "SELECT current_setting('geqo'), current_setting('search_path'), \
    coalesce(current_setting('my.x', true), ''), current_setting('TimeZone'), current_setting('work_mem'), \
    current_user, current_setting('transaction_read_only'), to_regclass('pg_temp.scratch') IS NULL, \
    (SELECT count(*) FROM pg_listening_channels()), (SELECT count(*) FROM pg_cursors WHERE is_holdable), \
    (SELECT count(*) FROM pg_prepared_statements WHERE from_sql), \
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), \
    to_regprocedure('pg_temp.mine()') IS NULL";

/// Statements whose effect goes with their client to any connection.
const TRACKED: &[&str] = &[
    "SET geqo = off",
    "SET SESSION search_path TO one, \"Two, three\"",
    "set timezone to 'Asia/Tokyo'",
    "/* a comment */ SET work_mem = '7MB'; SELECT 1",
    "SET my.x = 'it''s \\ mine'",
    "SET ROLE other",
    "SET ROLE other; SET geqo = off; SET my.x = 'both'",
    "SELECT set_config('geqo', 'off', false)",
    "SELECT pg_catalog.set_config('my.x', 'x' || 1, false)",
    "SELECT set_config('search_path', '', false)",
    "BEGIN; SET geqo = off; COMMIT",
    "BEGIN; SAVEPOINT a; SET geqo = off; RELEASE a; SAVEPOINT b; SET my.x = 'lost'; ROLLBACK TO b; COMMIT",
    "SET default_transaction_read_only = on",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "DO $$ BEGIN SET geqo = off; PERFORM set_config('my.x', 'in DO', false); END $$",
    "SELECT sets()",
    "SELECT calls_sets()",
    "SET geqo = off; SET my.x = 'gone'; RESET my.x; SET work_mem = '7MB'; RESET geqo",
];

/// Statements that keep their client on its connection.
const PINNING: &[&str] = &[
    "CREATE TEMP TABLE scratch (n int)",
    "CREATE TABLE pg_temp.scratch (n int)",
    "SELECT 1 AS n INTO TEMPORARY scratch",
    "SET search_path = pg_temp; CREATE TABLE scratch (n int)",
    "CREATE FUNCTION pg_temp.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "LISTEN depot",
    "PREPARE mine AS SELECT 1",
    "DECLARE held CURSOR WITH HOLD FOR SELECT 1",
    "BEGIN; DECLARE held CURSOR WITH HOLD FOR SELECT 1; COMMIT",
    "SELECT pg_advisory_lock(1)",
    "SELECT locks()",
    "SELECT creates()",
    "CALL listens()",
    "SELECT names('my.' || 'x', 'computed')",
    "DO $$ BEGIN EXECUTE 'SET my.x = ''hidden'''; END $$",
];

/// Statements that leave nothing.
const HARMLESS: &[&str] = &[
    "BEGIN; SET LOCAL geqo = off; SET LOCAL my.x = 'x'; SELECT set_config('work_mem', '7MB', true); COMMIT",
    "BEGIN; SET geqo = off; CREATE TEMP TABLE scratch (n int); ROLLBACK",
    "BEGIN; CREATE TEMP TABLE scratch (n int) ON COMMIT DROP; COMMIT",
    "BEGIN; DECLARE brief CURSOR FOR SELECT 1; FETCH brief; COMMIT",
    "SELECT pg_advisory_lock(1); SELECT pg_advisory_unlock(1)",
    "BEGIN; SELECT pg_advisory_xact_lock(1); SET TRANSACTION READ ONLY; COMMIT",
    "LISTEN depot; UNLISTEN depot",
    "SELECT count(*), lower('X'), now() IS NULL FROM pg_class",
];

fn database() -> Database {
    let database = Database::create();
    database.admin().run(OBJECTS);
    database
}

#[test]
fn what_can_move_goes_with_its_client_and_with_nobody_else() {
    let database = database();
    let proxy = Proxy::start(pool_of(1));
    for sql in TRACKED {
        let mut direct = database.direct();
        let clean = direct.run(LOOK).rows();
        direct.run(sql);
        let changed = direct.run(LOOK).rows();
        assert_ne!(changed, clean, "{sql}: the test sees nothing of it");
        let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
        let backend = b.backend();
        a.run(sql);
        for _ in 0..2 {
            assert_eq!(b.run(LOOK).rows(), clean, "{sql}: the other client");
            assert_eq!(a.run(LOOK).rows(), changed, "{sql}: the client itself");
        }
        a.leave();
        assert_eq!(b.run(LOOK).rows(), clean, "{sql}: after it left");
        assert_eq!(b.backend(), backend, "{sql}");
    }
}

#[test]
fn what_cannot_move_keeps_its_client_and_goes_with_it() {
    let database = database();
    let proxy = Proxy::start(pool_of(2));
    for sql in PINNING {
        let mut direct = database.direct();
        let clean = direct.run(LOOK).rows();
        direct.run(sql);
        let changed = direct.run(LOOK).rows();
        drop(direct);
        let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
        a.run(sql);
        let backend = a.backend();
        for _ in 0..3 {
            assert_eq!(b.run(LOOK).rows(), clean, "{sql}: the other client");
            assert_ne!(b.backend(), backend, "{sql}: the other client");
            assert_eq!(a.run(LOOK).rows(), changed, "{sql}: the client itself");
            assert_eq!(a.backend(), backend, "{sql}: the client itself");
        }
        a.leave();
        // Both connections are looked at, whichever they are.
        let mut c = proxy.client(&database);
        b.run("BEGIN");
        for client in [&mut b, &mut c] {
            assert_eq!(client.run(LOOK).rows(), clean, "{sql}: after it left");
        }
        b.run("COMMIT");
    }
}

#[test]
fn what_ends_with_its_transaction_neither_stays_nor_pins() {
    let database = database();
    let proxy = Proxy::start(pool_of(1));
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    let clean = a.run(LOOK).rows();
    for sql in HARMLESS {
        a.run(sql);
        assert_eq!(b.run(LOOK).rows(), clean, "{sql}");
        assert_eq!(a.run(LOOK).rows(), clean, "{sql}");
    }
    for reason in ["temp_table", "cursor", "listen", "prepare", "advisory_lock", "load", "opaque"] {
        let metric = format!("pgrouting_proxy_pins_total{{reason=\"{reason}\"}}");
        assert_eq!(proxy.metric(&metric), 0, "{reason}");
    }
}

#[test]
fn the_extended_protocol_is_watched_too() {
    let database = database();
    let proxy = Proxy::start(pool_of(1));
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    let set = [
        parse("s", "SELECT set_config('geqo', $1, false)"),
        bind("", "s", &[Some("off")]),
        execute("", 0),
        sync(),
    ];
    a.ask(&set.concat());
    assert_eq!(b.column("SHOW geqo"), ["on"]);
    assert_eq!(a.column("SHOW geqo"), ["off"]);
    // Used again, it is no less watched.
    a.ask(&[bind("", "s", &[Some("on")]), execute("", 0), sync()].concat());
    assert_eq!(a.column("SHOW geqo"), ["on"]);
    // A name that is a parameter keeps the client where it is.
    let computed = [
        parse("", "SELECT set_config($1, 'x', false)"),
        bind("", "", &[Some("my.x")]),
        execute("", 0),
        sync(),
    ];
    a.ask(&computed.concat());
    a.run("SELECT 1");
    assert_eq!(proxy.metric("pgrouting_proxy_pins_total{reason=\"opaque\"}"), 1);
    a.leave();
    assert_eq!(b.column("SELECT coalesce(current_setting('my.x', true), '')"), [""]);
}

#[test]
fn what_follows_in_the_same_write_waits_for_the_state_before_it() {
    let database = database();
    let proxy = Proxy::start(pool_of(1));
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    a.send(&[query("SET geqo = off"), query("SHOW geqo"), query("RESET ALL"), query("SHOW geqo")].concat());
    let answer = a.ready_times(4);
    assert_eq!(answer.column(), ["off", "on"]);
    assert_eq!(b.column("SHOW geqo"), ["on"]);
}

#[test]
fn a_reset_goes_back_to_the_startup_packet() {
    let database = database();
    let login =
        |login: Login| login.with("TimeZone", "Asia/Tokyo").with("options", "-c geqo=off -c my.x=mine");
    let look = |client: &mut Client, undo: &str| {
        client.run("SET TimeZone = 'UTC'; SET geqo = on; SET my.x = 'other'");
        let mut told = client.run(undo).parameters();
        let looked = client.run(LOOK);
        told.extend(looked.parameters());
        (told.pop(), looked.rows())
    };
    let one_by_one = "SET timezone TO DEFAULT; RESET geqo; RESET my.x";
    for undo in ["RESET TimeZone; SET geqo TO DEFAULT; RESET my.x", one_by_one, "RESET ALL", "DISCARD ALL"] {
        let expected = look(&mut login(database.direct_login()).connect(), undo);
        for config in [session_pool_of(1), pool_of(1)] {
            let mode = config.pooling.mode;
            let proxy = Proxy::start(config);
            let found = look(&mut login(proxy.login(&database)).connect(), undo);
            assert_eq!(found.1, expected.1, "{mode:?}: {undo}");
            assert_eq!(found.0, expected.0, "{mode:?}: {undo}: what the client is told last");
        }
    }
}

#[test]
fn case_137_an_empty_search_path_of_pg_dump_is_nobody_elses() {
    let database = database();
    database.admin().run("CREATE TABLE mine (n int); GRANT ALL ON mine TO app");
    let proxy = Proxy::start(pool_of(1));
    let [mut dump, mut app] = [(); 2].map(|()| proxy.client(&database));
    dump.run("SELECT pg_catalog.set_config('search_path', '', false)");
    app.run("SELECT * FROM mine");
    assert_eq!(dump.try_query("SELECT * FROM mine").sqlstate().as_deref(), Some("42P01"));
    dump.leave();
    app.run("SELECT * FROM mine");
}

#[test]
fn case_149_a_session_lock_is_released_where_it_was_taken() {
    let database = database();
    let proxy = Proxy::start(pool_of(2));
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    a.run("SELECT pg_advisory_lock(7)");
    for _ in 0..3 {
        assert_eq!(b.column("SELECT pg_try_advisory_lock(7)"), ["f"]);
    }
    assert_eq!(a.column("SELECT pg_advisory_unlock(7)"), ["t"]);
    assert_eq!(b.column("SELECT pg_try_advisory_lock(7)"), ["t"]);
}

#[test]
fn case_150_a_session_lock_ends_with_its_client() {
    let database = database();
    let proxy = Proxy::start(pool_of(1));
    let mut a = proxy.client(&database);
    a.run("SELECT pg_advisory_lock(7)");
    a.hang_up();
    assert_eq!(proxy.client(&database).column("SELECT pg_try_advisory_lock(7)"), ["t"]);
}

#[test]
fn case_153_a_temporary_table_is_nobody_elses() {
    let database = database();
    let proxy = Proxy::start(pool_of(1));
    let mut a = proxy.client(&database);
    a.run("CREATE TEMP TABLE scratch AS SELECT 1 AS n");
    assert_eq!(a.column("SELECT n FROM scratch"), ["1"]);
    a.run("DROP TABLE scratch");
    let mut b = proxy.client(&database);
    b.run("CREATE TEMP TABLE scratch AS SELECT 2 AS n");
    assert_eq!(b.column("SELECT n FROM scratch"), ["2"]);
    b.leave();
    assert_eq!(a.try_query("SELECT n FROM scratch").sqlstate().as_deref(), Some("42P01"));
}

#[test]
fn another_sessions_authorization_goes_with_its_client() {
    let database = database();
    let mut config = pool_of(1);
    if let AuthConfig::UserList { users } = &mut config.auth {
        users.push(user("postgres", &password_of("postgres")));
    }
    let proxy = Proxy::start(config);
    let login = Login::new(proxy.port, "postgres", &database.name);
    let [mut a, mut b] = [(); 2].map(|()| login.connect());
    a.run("SET log_min_duration_statement = '1h'; SET SESSION AUTHORIZATION app; SET ROLE other");
    let who = "SELECT session_user || ' ' || current_user || ' ' || \
               current_setting('log_min_duration_statement')";
    for _ in 0..2 {
        assert_eq!(b.column(who), ["postgres postgres -1"]);
        assert_eq!(a.column(who), ["app other 1h"]);
    }
    a.run("RESET SESSION AUTHORIZATION");
    assert_eq!(b.column("SELECT session_user"), ["postgres"]);
    assert_eq!(a.column("SELECT current_user"), ["postgres"]);
}

#[test]
fn questions_and_settings_of_ours_do_not_end_the_unnamed_statement() {
    let database = database();
    let proxy = Proxy::start(pool_of(1));
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    a.ask(&[parse("", "SELECT set_config('geqo', 'off', false)"), sync()].concat());
    for _ in 0..2 {
        let answer = a.ask(&[bind("", "", &[]), execute("", 0), sync()].concat());
        assert_eq!(answer.column(), ["off"]);
        // Another client has the connection meanwhile, with named statements only.
        b.ask(
            &[parse("n", "SELECT 1"), bind("", "n", &[]), execute("", 0), close('S', "n"), sync()].concat(),
        );
        b.ask(&[bind("", "n", &[]), execute("", 0), sync()].concat());
    }
}

#[test]
fn what_follows_a_discard_in_the_same_write_is_not_forgotten() {
    let database = database();
    let proxy = Proxy::start(pool_of(1));
    let discard = |is_extended| {
        if is_extended {
            [parse("d", "DISCARD ALL"), bind("", "d", &[]), execute("", 0), sync()].concat()
        } else {
            query("DISCARD ALL")
        }
    };
    for is_extended in [false, true] {
        for sql in ["SELECT set_config('geqo', 'off', false)", "SET geqo = off"] {
            let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
            a.send(&[discard(is_extended), query(sql)].concat());
            a.ready_times(2);
            assert_eq!(b.column("SHOW geqo"), ["on"], "{sql}");
            assert_eq!(a.column("SHOW geqo"), ["off"], "{sql}");
        }
        let mut a = proxy.client(&database);
        a.send(&[discard(is_extended), query("SELECT pg_advisory_lock(7)")].concat());
        a.ready_times(2);
        a.leave();
        let mut b = proxy.client(&database);
        assert_eq!(b.column("SELECT pg_try_advisory_lock(7)"), ["t"]);
    }
}

#[test]
fn function_calls_are_watched_too() {
    let database = database();
    let mut admin = database.admin();
    let oid = admin.column("SELECT 'pg_advisory_lock(bigint)'::regprocedure::oid::int").remove(0);
    let proxy = Proxy::start(pool_of(1));
    let mut a = proxy.client(&database);
    a.ask(&function_call(oid.parse().unwrap(), &[&7_i64.to_be_bytes()]));
    a.run("SELECT 1");
    assert_eq!(proxy.metric("pgrouting_proxy_pinned_clients{reason=\"advisory_lock\"}"), 1);
    a.leave();
    assert_eq!(proxy.client(&database).column("SELECT pg_try_advisory_lock(7)"), ["t"]);
}
