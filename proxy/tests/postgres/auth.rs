//! Logins: by a list of users, by the roles of the primary, and while passwords change.

use std::fs;
use std::process::Command;

use pgrouting_contract::config::{AUTH_QUERY, AuthConfig, UserConfig};
use pgrouting_contract::report::CredentialState;

use super::support::client::{Client, Login};
use super::support::poll;
use super::support::proxy::{Proxy, document, new_directory, pool_of, server as server_at, user};
use super::support::server::{Database, Server, own_primary, primary};

#[test]
fn case_169_a_wrong_password_is_28p01_and_the_right_one_works_after_it() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    for wrong in ["wrong", "", "app secret ", "App secret"] {
        assert_eq!(proxy.login(&database).password(wrong).refused(), "28P01");
    }
    let mut client = proxy.client(&database);
    assert_eq!(client.column("SELECT session_user"), ["app"]);
}

#[test]
fn an_unknown_user_gets_the_answer_of_a_wrong_password() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    let refused = |user: &str, password: &str| {
        let login = Login::new(proxy.port, user, &database.name).password(password);
        Client::connect(&login).unwrap_err().0.unwrap()
    };
    let unknown = refused("app_x", "any");
    let known = refused("app_b", "any");
    assert_eq!(
        String::from_utf8_lossy(&unknown.bytes).replace("app_x", "USER"),
        String::from_utf8_lossy(&known.bytes).replace("app_b", "USER")
    );
    assert_eq!(unknown.field('C').as_deref(), Some("28P01"));
    assert_eq!(unknown.field('S').as_deref(), Some("FATAL"));
    // The server knows this role, but the list does not.
    assert_eq!(Login::new(proxy.port, "postgres", &database.name).refused(), "28P01");
}

#[test]
fn an_unknown_user_is_given_the_same_salt_each_time() {
    let proxy = Proxy::start(pool_of(1));
    let salt = |name: &str| {
        let mut client = Client::open(proxy.port);
        let body = format!("user\0{name}\0\0");
        let length = u32::try_from(body.len() + 8).unwrap();
        client.send(&[&length.to_be_bytes()[..], b"\0\x03\0\0", body.as_bytes()].concat());
        client.first_salt()
    };
    assert_eq!(salt("nobody"), salt("nobody"));
    assert_ne!(salt("nobody"), salt("nobody else"));
    assert_eq!(salt("app"), salt("app"));
}

#[test]
fn unknown_database_is_refused_with_3d000() {
    let database = Database::create();
    let proxy = Proxy::start(pool_of(1));
    for _ in 0..2 {
        assert_eq!(Login::new(proxy.port, "app", "no_such_database").refused(), "3D000");
    }
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
}

#[test]
fn a_user_whose_password_the_server_does_not_take_is_refused_clearly() {
    let database = Database::create();
    let mut config = pool_of(1);
    let users = vec![user("app", "app secret"), user("app_b", "not what the server has")];
    config.auth = AuthConfig::UserList { users };
    let proxy = Proxy::start(config);
    let login = Login::new(proxy.port, "app_b", &database.name).password("not what the server has");
    assert_eq!(login.refused(), "28P01", "the server's refusal is passed on");
    assert_eq!(proxy.client(&database).column("SELECT 1"), ["1"]);
    let report = proxy.report();
    let state = |name: &str| report.credentials.iter().find(|c| c.user == name).unwrap().state;
    assert_eq!(state("app"), CredentialState::Valid);
    assert_eq!(state("app_b"), CredentialState::Rejected);
}

#[test]
fn case_174_a_rotated_password_file_counts_without_a_restart() {
    let database = Database::create();
    let mut admin = primary().admin("postgres");
    admin.run("CREATE ROLE rotating LOGIN PASSWORD 'correct horse'");
    let directory = new_directory();
    let secret = directory.join("password");
    fs::write(&secret, "correct horse\n").unwrap();
    let mut config = document();
    config.auth =
        AuthConfig::UserList { users: vec![user("app", "app secret"), from_file("rotating", &secret)] };
    let proxy = Proxy::start(config);
    let login = |password: &str| Login::new(proxy.port, "rotating", &database.name).password(password);
    let mut before = login("correct horse").connect();
    assert_eq!(before.column("SELECT 1"), ["1"]);

    admin.run("ALTER ROLE rotating PASSWORD 'staple 2'");
    fs::write(&secret, "staple 2\n").unwrap();
    let mut after = poll("the new password to count", || Client::connect(&login("staple 2")).ok());
    assert_eq!(after.column("SELECT 1"), ["1"]);
    assert_eq!(before.column("SELECT 2"), ["2"], "who was there before goes on");
    // Both count for a while, so that clients may change over one by one; another does not.
    assert_eq!(login("correct horse").connect().column("SELECT 3"), ["3"]);
    assert_eq!(login("neither").refused(), "28P01");
    // New server connections log in with the new one.
    let mut clients = [(); 3].map(|()| login("staple 2").connect());
    clients.iter_mut().for_each(|client| drop(client.run("BEGIN; SELECT 1")));
    drop((clients, before, after, proxy));
    database.await_value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'rotating'", "0");
    admin.run("DROP ROLE rotating");
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_password_file_that_is_missing_is_reported_and_read_once_it_is_there() {
    let database = Database::create();
    let directory = new_directory();
    let secret = directory.join("late");
    let mut config = document();
    config.auth =
        AuthConfig::UserList { users: vec![user("app", "app secret"), from_file("app_b", &secret)] };
    let proxy = Proxy::start(config);
    let missing = proxy.report().credentials.into_iter().find(|c| c.user == "app_b").unwrap();
    assert_eq!(missing.state, CredentialState::Missing);
    assert!(missing.message.contains("late"), "{}", missing.message);
    fs::write(&secret, "app_b secret").unwrap();
    let login = Login::new(proxy.port, "app_b", &database.name);
    let mut client = poll("the password to be read", || Client::connect(&login).ok());
    assert_eq!(client.column("SELECT session_user"), ["app_b"]);
    fs::remove_dir_all(directory).unwrap();
}

#[test]
fn pass_through_lets_in_whom_the_primary_would() {
    let database = Database::create();
    let mut admin = primary().admin("postgres");
    admin.run(
        "CREATE ROLE passing LOGIN PASSWORD 'first'; CREATE ROLE locked NOLOGIN PASSWORD 'x'; \
         CREATE ROLE expired LOGIN PASSWORD 'x' VALID UNTIL '2001-01-01'; CREATE ROLE bare LOGIN",
    );
    let proxy = Proxy::start(pass_through());
    let login = |user: &str, password: &str| Login::new(proxy.port, user, &database.name).password(password);
    assert_eq!(login("passing", "first").connect().column("SELECT session_user"), ["passing"]);
    assert_eq!(login("app", "app secret").connect().column("SELECT session_user"), ["app"]);
    for (user, password) in
        [("passing", "second"), ("locked", "x"), ("expired", "x"), ("bare", ""), ("nobody", "x")]
    {
        assert_eq!(login(user, password).refused(), "28P01", "{user}");
    }
    // A changed password counts within seconds, and so does a role that is gone.
    admin.run("ALTER ROLE passing PASSWORD 'second'");
    poll("the new password to count", || Client::connect(&login("passing", "second")).ok());
    assert_eq!(login("passing", "first").refused(), "28P01");
    assert_eq!(login("passing", "second").connect().column("SELECT 1"), ["1"]);
    drop(proxy);
    database.await_value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'passing'", "0");
    admin.run("DROP ROLE passing; DROP ROLE locked; DROP ROLE expired; DROP ROLE bare");
}

#[test]
fn many_who_come_at_once_as_a_new_user_are_all_let_in() {
    let database = Database::create();
    let asker = asking(&database, "SELECT $1, 'app secret'");
    for config in [pass_through(), asker] {
        let proxy = Proxy::start(config);
        let login = Login::new(proxy.port, "app", &database.name).password("app secret");
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| assert_eq!(login.connect().column("SELECT session_user"), ["app"]));
            }
        });
    }
}

#[test]
fn case_173_iterations_and_salt_are_the_stored_verifiers() {
    let database = Database::create();
    let mut admin = primary().admin("postgres");
    // Of the password `pencil-2`, with 10,000 iterations and a salt of ten bytes.
    let verifier = "SCRAM-SHA-256$10000:dGVuLWJ5dGVzIQ==$X1iNfYXWQnDv5UXVdj85hyacDy6nPipWoSBkUy9jDHA=:\
                    uXdcj+vvGxSrOXFMCHjdEEuZW46ViqCtRf+dXo3M4Yg=";
    admin.run(&format!("CREATE ROLE pencil LOGIN PASSWORD '{verifier}'"));
    let mut listed = pool_of(1);
    listed.auth = AuthConfig::UserList { users: vec![user("app", "app secret"), user("pencil", "pencil-2")] };
    let mut stored = pool_of(1);
    stored.auth = AuthConfig::UserList { users: vec![user("app", "app secret"), user("pencil", verifier)] };
    for config in [listed, stored, pass_through()] {
        let proxy = Proxy::start(config);
        let login = Login::new(proxy.port, "pencil", &database.name).password("pencil-2");
        assert_eq!(login.connect().column("SELECT session_user"), ["pencil"]);
        assert_eq!(login.password("pencil-3").refused(), "28P01");
    }
    database.await_value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'pencil'", "0");
    admin.run("DROP ROLE pencil");
}

#[test]
fn pass_through_with_a_probe_user_who_may_not_read_says_what_to_do() {
    let database = Database::create();
    let mut config = pass_through();
    config.probe.user = Some(user("app_b", "app_b secret"));
    let proxy = Proxy::start(config);
    let refusal = Client::connect(&proxy.login(&database)).unwrap_err();
    assert_eq!(refusal.sqlstate(), "57P03");
    assert!(refusal.0.unwrap().field('H').unwrap().contains("pg_authid"));
}

fn pass_through() -> pgrouting_contract::config::ProxyConfig {
    let mut config = pool_of(2);
    config.auth = AuthConfig::Passthrough {};
    config.probe.user = Some(user("probe", "probe secret"));
    config
}

#[test]
fn a_query_says_who_may_log_in() {
    let database = Database::create();
    let mut admin = primary().admin(&database.name);
    admin.run(
        "CREATE ROLE asked LOGIN PASSWORD 'first'; CREATE ROLE plain LOGIN PASSWORD 'in clear'; \
         CREATE ROLE \"o'dd\\\" LOGIN PASSWORD 'odd'; CREATE SCHEMA vault; CREATE TABLE vault.users (name text, secret text); \
         INSERT INTO vault.users SELECT rolname, rolpassword FROM pg_authid WHERE rolname IN ('asked', 'o''dd\\'); \
         INSERT INTO vault.users VALUES ('plain', 'in clear'), ('app_b', NULL), \
         ('app', ''); \
         GRANT USAGE ON SCHEMA vault TO probe; GRANT SELECT ON vault.users TO probe",
    );
    let proxy = Proxy::start(asking(&database, "SELECT name, secret FROM vault.users WHERE name = $1"));
    let login = |user: &str, password: &str| Login::new(proxy.port, user, &database.name).password(password);
    for (user, password) in [("asked", "first"), ("plain", "in clear"), ("o'dd\\", "odd")] {
        assert_eq!(login(user, password).connect().column("SELECT session_user"), [user]);
        assert_eq!(login(user, "wrong").refused(), "28P01", "{user}");
    }
    // No row, no secret, an empty one, and what a name would make of the query.
    for user in ["nobody", "app_b", "app", "' OR '1'='1", "$1"] {
        assert_eq!(login(user, "app secret").refused(), "28P01", "{user}");
    }
    admin.run(
        "UPDATE vault.users SET secret = 'second' WHERE name = 'plain'; ALTER ROLE plain PASSWORD 'second'",
    );
    poll("the new password to count", || Client::connect(&login("plain", "second")).ok());
    drop(proxy);
    let left = "SELECT count(*) FROM pg_stat_activity WHERE usename IN ('asked', 'plain', 'o''dd\\')";
    database.await_value(left, "0");
    admin.run("DROP ROLE asked; DROP ROLE plain; DROP ROLE \"o'dd\\\"");
}

#[test]
fn a_query_finds_nothing_that_others_have_put_before_it() {
    let database = Database::create();
    let mut admin = primary().admin(&database.name);
    admin.run(
        "CREATE ROLE asker LOGIN PASSWORD 'asker secret'; GRANT SELECT ON pg_catalog.pg_authid TO asker; \
         CREATE SCHEMA evil; GRANT USAGE ON SCHEMA evil TO asker; \
         CREATE TABLE evil.pg_authid AS SELECT 'app'::name AS rolname, 'evil'::text AS rolpassword, \
         true AS rolcanlogin, NULL::timestamptz AS rolvaliduntil; GRANT SELECT ON evil.pg_authid TO asker; \
         ALTER ROLE asker SET search_path = evil, pg_catalog",
    );
    let mut config = asking(&database, AUTH_QUERY);
    if let AuthConfig::Query { user: asker, .. } = &mut config.auth {
        *asker = user("asker", "asker secret");
    }
    let proxy = Proxy::start(config);
    let login = |password: &str| Login::new(proxy.port, "app", &database.name).password(password);
    assert_eq!(login("app secret").connect().column("SELECT session_user"), ["app"]);
    assert_eq!(login("evil").refused(), "28P01");
    drop(proxy);
    database.await_value("SELECT count(*) FROM pg_stat_activity WHERE usename = 'asker'", "0");
    admin.run("DROP OWNED BY asker; DROP ROLE asker");
}

#[test]
fn a_query_that_cannot_be_run_says_what_to_do() {
    let database = Database::create();
    for sql in ["SELECT name, secret FROM nowhere.users WHERE name = $1", "SELECT $1", "SELEKT $1"] {
        let proxy = Proxy::start(asking(&database, sql));
        let refusal = Client::connect(&proxy.login(&database)).unwrap_err();
        assert_eq!(refusal.sqlstate(), "57P03", "{sql}");
        assert!(refusal.0.unwrap().field('H').unwrap().contains("The user of the query"), "{sql}");
    }
}

#[test]
fn who_is_stored_with_md5_logs_in_on_both_sides_whatever_says_so() {
    let hashing = hashing_server();
    let stored = hashing
        .admin("postgres")
        .value("SELECT rolpassword FROM pg_authid WHERE rolname = 'hashed'")
        .unwrap();
    assert!(stored.starts_with("md5"), "{stored}");
    let list = |secret: &str| AuthConfig::UserList {
        users: vec![user("app", "app secret"), user("hashed", secret)],
    };
    let asker = AuthConfig::Query { user: user("probe", "probe secret"), sql: AUTH_QUERY.to_owned() };
    for (auth, what) in [
        (list("hashed secret"), "a password"),
        (list(&stored), "the stored text"),
        (AuthConfig::Passthrough {}, "pass-through"),
        (asker, "a query"),
    ] {
        let mut config = pool_of(2);
        config.servers = vec![server_at("one", hashing.port)];
        config.probe.user = Some(user("probe", "probe secret"));
        config.auth = auth;
        let proxy = Proxy::start(config);
        assert_eq!(psql(proxy.port, "hashed", "hashed secret"), Ok("hashed\n".to_owned()), "{what}");
        let refusal = psql(proxy.port, "hashed", "Hashed secret").unwrap_err();
        assert!(refusal.contains("password authentication failed for user \"hashed\""), "{what}: {refusal}");
    }
}

/// What libpq makes of a login: the name of the session's user, or the error.
fn psql(port: u16, user: &str, password: &str) -> Result<String, String> {
    let port = port.to_string();
    let arguments =
        ["-X", "-h", "127.0.0.1", "-p", &port, "-U", user, "-d", "postgres", "-Atc", "SELECT session_user"];
    let output = Command::new("psql").args(arguments).env("PGPASSWORD", password).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

#[test]
fn a_password_in_clear_text_is_sent_to_no_server_that_is_not_verified() {
    let hashing = hashing_server();
    let mut config = pool_of(2);
    config.servers = vec![server_at("one", hashing.port)];
    config.auth =
        AuthConfig::UserList { users: vec![user("app", "app secret"), user("plain", "plain secret")] };
    let proxy = Proxy::start(config);
    assert!(Client::connect(&Login::new(proxy.port, "plain", "postgres")).is_err());
    let seen = poll("the report to tell", || {
        proxy.report().credentials.into_iter().find(|seen| seen.user == "plain" && !seen.message.is_empty())
    });
    assert_eq!(seen.state, CredentialState::Rejected);
    assert!(seen.message.contains("in clear text where its certificate is not verified"), "{}", seen.message);
}

/// A server that has a password of MD5, and asks one role for its password in clear text.
fn hashing_server() -> Server {
    let server = own_primary();
    let mut admin = server.admin("postgres");
    let hba = format!("{}/pg_hba.conf", admin.value("SHOW data_directory").unwrap());
    let before = fs::read_to_string(&hba).unwrap();
    fs::write(&hba, format!("host all hashed all md5\nhost all plain all password\n{before}")).unwrap();
    admin.run("CREATE ROLE plain LOGIN PASSWORD 'plain secret'");
    admin.run("SET password_encryption = md5; CREATE ROLE hashed LOGIN PASSWORD 'hashed secret'");
    admin.run("SELECT pg_reload_conf()");
    poll("the rules to be read", || {
        (admin.value("SELECT count(*) FROM pg_hba_file_rules WHERE auth_method = 'md5'").unwrap() == "1")
            .then_some(())
    });
    server
}

/// Asks as the monitor's user, in the test's own database.
fn asking(database: &Database, sql: &str) -> pgrouting_contract::config::ProxyConfig {
    let mut config = pool_of(2);
    config.auth = AuthConfig::Query { user: user("probe", "probe secret"), sql: sql.to_owned() };
    config.probe.user = None;
    config.probe.database.clone_from(&database.name);
    config
}

fn from_file(name: &str, path: &std::path::Path) -> UserConfig {
    UserConfig {
        name: Some(name.to_owned()),
        name_file: None,
        password: None,
        password_file: Some(path.display().to_string()),
    }
}
