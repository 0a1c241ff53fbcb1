//! Settings belong to their client: those of its startup message, and those that it sets.

use super::support::client::{Client, Login};
use super::support::message::{bind_formatted, describe, execute, parse, query, sync};
use super::support::proxy::{Proxy, pool_of};
use super::support::server::Database;

#[test]
fn clients_on_one_connection_each_see_their_own_settings() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let wishes: [&[(&str, &str)]; 6] = [
        &[("TimeZone", "Asia/Tokyo"), ("application_name", "one")],
        &[("TimeZone", "UTC"), ("DateStyle", "German, DMY")],
        &[],
        &[("options", "-c geqo=off -c TimeZone=America/Lima"), ("application_name", "it's \\ \"four\"")],
        &[("search_path", "one, \"Two, three\""), ("statement_timeout", "12345")],
        &[("options", r#"-csearch_path="a\ b",c --work-mem=7MB"#), ("IntervalStyle", "iso_8601")],
    ];
    let shown = "SELECT current_setting('TimeZone'), current_setting('DateStyle'), current_setting('geqo'), \
                 current_setting('search_path'), current_setting('statement_timeout'), \
                 current_setting('work_mem'), current_setting('IntervalStyle'), current_setting('application_name')";
    let login = |login: Login, wishes: &[(&str, &str)]| {
        wishes.iter().fold(login, |login, (name, value)| login.with(name, value)).connect()
    };
    let expected = wishes.map(|wishes| login(database.direct_login(), wishes).run(shown).rows());
    let mut clients = wishes.map(|wishes| login(proxy.login(&database), wishes));
    for round in 0..3 {
        for (client, expected) in clients.iter_mut().zip(&expected) {
            assert_eq!(&client.run(shown).rows(), expected, "round {round}");
        }
    }
    assert_eq!(database.backends().len(), 1);
}

#[test]
fn case_130_the_encoding_belongs_to_the_client() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut latin = proxy.login(&database).with("client_encoding", "LATIN1").connect();
    let mut utf = proxy.login(&database).with("client_encoding", "UTF8").connect();
    let batch = [parse("", "SELECT chr(233)"), bind_formatted("", "", &[], &[], &[0]), describe('P', "")];
    for _ in 0..2 {
        let answer = latin.ask(&[batch.concat(), execute("", 0), sync()].concat());
        assert_eq!(answer.of('D').next().unwrap().values(), [Some(vec![0xe9])]);
        assert_eq!(utf.column("SELECT octet_length(chr(233)) || chr(233)"), ["2\u{e9}"]);
    }
    assert_eq!(latin.column("SHOW client_encoding"), ["LATIN1"]);
}

#[test]
fn case_134_parameters_are_reported_as_the_server_spells_them() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let client = proxy.login(&database).with("datestyle", "ISO, DMY").connect();
    let direct = database.direct_login().with("datestyle", "ISO, DMY").connect();
    assert!(client.parameters.contains(&("DateStyle".to_owned(), "ISO, DMY".to_owned())));
    assert_eq!(client.parameters, direct.parameters);
}

#[test]
fn case_143_float_digits_belong_to_the_client() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let [mut exact, mut short] =
        ["3", "0"].map(|digits| proxy.login(&database).with("extra_float_digits", digits).connect());
    let sql = "SELECT 0.1::float8 + 0.2::float8";
    assert_eq!(exact.column(sql), ["0.30000000000000004"]);
    assert_eq!(short.column(sql), ["0.3"]);
    assert_eq!(exact.column("SHOW extra_float_digits"), ["3"]);
}

#[test]
fn case_144_every_form_of_options_takes_effect() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let options = "-c search_path=one,two --lock-timeout=5s -cstatement_timeout=3000";
    let mut client = proxy.login(&database).with("options", options).connect();
    for (name, value) in [("search_path", "one,two"), ("lock_timeout", "5s"), ("statement_timeout", "3s")] {
        assert_eq!(client.column(&format!("SHOW {name}")), [value]);
    }
    let mut client = proxy.login(&database).with("options", r"-c application_name=a\ b+c").connect();
    assert_eq!(client.column("SHOW application_name"), ["a b+c"]);
}

#[test]
fn case_145_a_wrong_setting_ends_only_the_login_that_brought_it() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let login = || proxy.login(&database);
    for _ in 0..2 {
        assert_eq!(login().with("nosuch_setting", "1").refused(), "42704");
        assert_eq!(login().with("work_mem", "lots").refused(), "22023");
        assert_eq!(login().with("options", "-c nosuch_setting=1").refused(), "42704");
        assert_eq!(login().with("port", "1").refused(), "55P02");
        assert_eq!(login().with("fallback_application_name", "x").refused(), "42704");
    }
    assert_eq!(login().with("depot.flag", "on").connect().column("SHOW depot.flag"), ["on"]);
    assert_eq!(login().connect().column("SELECT 1"), ["1"]);
}

#[test]
fn case_146_the_application_name_follows_the_client() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let mut billing = proxy.login(&database).with("application_name", "billing").connect();
    let mut nameless = proxy.client(&database);
    for _ in 0..2 {
        assert_eq!(billing.column("SHOW application_name"), ["billing"]);
        assert_eq!(nameless.column("SHOW application_name"), [""]);
    }
}

#[test]
fn settings_of_the_document_hold_where_the_client_asks_for_nothing() {
    let database = Database::create();
    let mut config = pool_of(1);
    config.pooling.parameters.insert("TimeZone".to_owned(), "Europe/Oslo".to_owned());
    let proxy = Proxy::start(config);
    let mut own = proxy.login(&database).with("TimeZone", "Asia/Tokyo").connect();
    let mut none = proxy.client(&database);
    for _ in 0..2 {
        assert_eq!(own.column("SHOW TimeZone"), ["Asia/Tokyo"]);
        assert_eq!(none.column("SHOW TimeZone"), ["Europe/Oslo"]);
    }
}

#[test]
fn case_138_a_set_that_is_rolled_back_is_gone() {
    let (_database, _proxy, [mut a, mut b]) = two_clients();
    a.run("SET client_min_messages = warning");
    a.run("BEGIN");
    a.run("SET client_min_messages = notice");
    a.run("ROLLBACK");
    assert_eq!(a.column("SHOW client_min_messages"), ["warning"]);
    a.run("BEGIN");
    a.run("SAVEPOINT s; SET client_min_messages = error");
    a.run("ROLLBACK TO s; COMMIT");
    assert_eq!(a.column("SHOW client_min_messages"), ["warning"]);
    assert_eq!(b.column("SHOW client_min_messages"), ["notice"]);
}

#[test]
fn case_140_set_local_ends_with_its_transaction() {
    let (_database, _proxy, [mut a, mut b]) = two_clients();
    a.run("BEGIN");
    a.run("SET LOCAL search_path = red");
    assert_eq!(a.column("SHOW search_path"), ["red"]);
    assert_eq!(b.column("SHOW search_path"), ["\"$user\", public"]);
    a.run("COMMIT");
    assert_eq!(a.column("SHOW search_path"), ["\"$user\", public"]);
}

#[test]
fn case_129_a_changed_parameter_is_reported_to_its_client_only() {
    let (_database, _proxy, [mut a, mut b]) = two_clients();
    let zone = |zone: &str| vec![vec!["TimeZone".to_owned(), zone.to_owned()]];
    assert_eq!(a.run("SET TimeZone = 'Asia/Tokyo'").parameters(), zone("Asia/Tokyo"));
    a.run("BEGIN");
    assert_eq!(a.run("SET TimeZone = 'UTC'").parameters(), zone("UTC"));
    assert_eq!(a.run("ROLLBACK").parameters(), zone("Asia/Tokyo"));
    assert_eq!(b.run("SELECT 1").parameters(), Vec::<Vec<String>>::new());
    assert_eq!(a.run("SELECT 1").parameters(), Vec::<Vec<String>>::new());
}

#[test]
fn case_147_a_role_that_was_set_is_the_clients_alone() {
    let database = Database::create();
    super::support::server::primary().admin("postgres").run("GRANT other TO app");
    let proxy = Proxy::start(pool_of(2));
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    a.run("SET ROLE other");
    for _ in 0..2 {
        assert_eq!(b.column("SELECT current_user"), ["app"]);
        assert_eq!(a.column("SELECT current_user"), ["other"]);
    }
    a.leave();
    let [mut c, mut d] = [(); 2].map(|()| proxy.client(&database));
    c.run("BEGIN");
    for client in [&mut c, &mut d] {
        assert_eq!(client.column("SELECT current_user"), ["app"], "the connection was cleaned");
    }
}

#[test]
fn case_167_settings_of_the_role_are_what_reset_goes_back_to() {
    let (database, _proxy, [mut a, mut b]) = two_clients();
    let name = &database.name;
    database.admin().run(&format!(
        "ALTER ROLE app IN DATABASE {name} SET search_path = 'home'; \
         ALTER ROLE app IN DATABASE {name} SET lock_timeout = '4s'"
    ));
    // Connections that were opened before do not know of it.
    database.admin().run(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
         WHERE datname = current_database() AND usename = 'app'",
    );
    database.await_value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND usename = 'app'",
        "0",
    );
    assert_eq!(a.column("SHOW search_path"), ["home"]);
    a.run("SET search_path = away");
    assert_eq!(b.column("SHOW search_path"), ["home"]);
    assert_eq!(a.column("SHOW search_path"), ["away"]);
    a.run("RESET ALL");
    assert_eq!(a.column("SHOW search_path"), ["home"]);
    assert_eq!(b.column("SHOW lock_timeout"), ["4s"]);
}

#[test]
fn case_250_the_reset_batches_of_drivers_reset_only_their_own_session() {
    let (_database, _proxy, [mut a, mut b]) = two_clients();
    b.run("SET lock_timeout = '3s'");
    a.run("SET search_path = away");
    let first = a.run("SELECT pg_advisory_unlock_all();\nCLOSE ALL;\nUNLISTEN *;\nRESET ALL;");
    assert_eq!(first.tags(), ["SELECT 1", "CLOSE CURSOR ALL", "UNLISTEN", "RESET"]);
    assert_eq!(a.column("SHOW search_path"), ["\"$user\", public"]);
    let second = a.run(
        "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); \
         DISCARD TEMP; DISCARD SEQUENCES;",
    );
    let tags =
        ["CLOSE CURSOR ALL", "SET", "RESET", "UNLISTEN", "SELECT 1", "DISCARD TEMP", "DISCARD SEQUENCES"];
    assert_eq!(second.tags(), tags);
    assert_eq!(a.run("DISCARD ALL").tags(), ["DISCARD ALL"]);
    assert_eq!(b.column("SHOW lock_timeout"), ["3s"]);
}

fn two_clients() -> (Database, Proxy, [Client; 2]) {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(2));
    let clients = [(); 2].map(|()| proxy.client(&database));
    (database, proxy, clients)
}

#[test]
fn a_name_of_an_application_is_told_as_the_server_takes_it() {
    let database = Database::create();
    let long = "x".repeat(70);
    for config in [pool_of(1), super::support::proxy::session_pool_of(1)] {
        let proxy = Proxy::start(config);
        for name in [&long, "caf\u{e9}"] {
            let told = |login: Login| {
                let client = login.with("application_name", name).connect();
                client.parameters.into_iter().find(|(name, _)| name == "application_name")
            };
            // Twice: the greeting is remembered.
            for _ in 0..2 {
                assert_eq!(told(proxy.login(&database)), told(database.direct_login()));
            }
        }
    }
}

#[test]
fn a_request_never_runs_under_settings_that_could_not_be_given() {
    let database = Database::create();
    let mut admin = database.admin();
    admin.run(
        "CREATE ROLE brief; GRANT brief TO app; CREATE TABLE ran (who text); GRANT ALL ON ran TO app, brief",
    );
    let proxy = Proxy::start(pool_of(1));
    let [mut a, mut b] = [(); 2].map(|()| proxy.client(&database));
    a.run("SET ROLE brief");
    b.run("INSERT INTO ran VALUES ('b')");
    admin.run("REVOKE ALL ON ran FROM brief; DROP ROLE brief");
    // The connection has the settings of `b` and cannot be given those of `a`.
    a.send(&query("INSERT INTO ran VALUES ('a')"));
    assert_eq!(a.ended_with(), "22023");
    assert_eq!(b.column("SELECT who FROM ran"), ["b"]);
}

#[test]
fn a_time_out_of_one_client_never_ends_what_another_one_runs() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let [mut hasty, mut slow] = [(); 2].map(|()| proxy.client(&database));
    hasty.run("SET statement_timeout = '300ms'");
    for _ in 0..3 {
        assert_eq!(hasty.try_query("SELECT pg_sleep(60)").sqlstate().as_deref(), Some("57014"));
        slow.run("SET work_mem = '7MB'; SELECT pg_sleep(0.4)");
        assert_eq!(slow.column("SHOW statement_timeout"), ["0"]);
        assert_eq!(hasty.column("SHOW statement_timeout"), ["300ms"]);
    }
}
