//! Random temporary objects in front of others of their names: a session gets the same answers through the split as on its
//! own connection to the primary. Nothing here is prepared or in PL/pgSQL: PostgreSQL's own plans do not notice a temporary
//! table that comes in front of another, so the answer depends on what a server process has run before.

use super::split::{CRATE, Split};
use super::support::client::Client;
use super::support::message::{Answer, batch, query};
use super::support::random::{Random, number_in};
use super::support::server::Database;

/// Statements of one run; `PGROUTING_TEST_STATEMENTS` plays more, `PGROUTING_TEST_SEED` others.
const USUAL: u64 = 1500;

const NAMES: [&str; 3] = ["crate", "shelf", "scratch"];

#[test]
fn random_temporary_objects_are_met_as_on_the_primary() {
    let mut setup = CRATE.to_vec();
    setup.extend([
        "CREATE TABLE shelf AS SELECT g AS id FROM generate_series(1, 3) g",
        "CREATE FUNCTION crates() RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM crate'",
        "CREATE FUNCTION make(name text) RETURNS void LANGUAGE plpgsql \
         AS 'BEGIN EXECUTE format(''CREATE TEMP TABLE %I AS SELECT 1 AS id'', name); END'",
        "CREATE VIEW counted AS SELECT crates() AS id",
        "CREATE VIEW shelved AS SELECT count(*) AS id FROM shelf",
        "CREATE TABLE named (id regclass)",
        "INSERT INTO named VALUES ('crate'), ('shelf')",
        "CREATE DOMAIN label AS regclass",
        "CREATE TABLE labelled (id label)",
        "INSERT INTO labelled VALUES ('crate'), ('shelf')",
    ]);
    let split = Split::of(&setup, |config| config.split.rescue = false);
    let seed = number_in("PGROUTING_TEST_SEED", u64::from(std::process::id()));
    let mut random = Random::seeded(seed);
    // A database of its own, so that neither waits for a lock of the other.
    let other = Database::create();
    let (mut client, mut direct) = (split.client(), other.direct());
    setup.iter().for_each(|sql| drop(direct.run(sql)));
    let (mut on_replica, mut at_home) = (0, 0);
    for number in 0..number_in("PGROUTING_TEST_STATEMENTS", USUAL) {
        let (sql, form) = form(&mut random);
        let [ours, theirs] = [&mut client, &mut direct].map(|client| client.ask(&form));
        assert_eq!(told(&ours), told(&theirs), "seed {seed}, statement {number}: {sql}");
        if ours.status() == 'I' && theirs.status() == 'I' {
            let is_on_replica = went(&mut client);
            on_replica += u64::from(is_on_replica);
            at_home += u64::from(!is_on_replica);
        }
    }
    assert!(on_replica > 0 && at_home > 0, "seed {seed}: {on_replica} {at_home}");
}

fn went(client: &mut Client) -> bool {
    client.run("SHOW ROUTE LAST").rows()[0][0].as_deref() == Some("two")
}

/// What an answer says, but for what differs from one temporary schema to the next.
fn told(answer: &Answer) -> String {
    let is_digit = |c: char| c.is_ascii_digit();
    let plain = |text: String| match text.strip_prefix("pg_temp_") {
        Some(rest) => format!("pg_temp{}", rest.trim_start_matches(is_digit)),
        None => text,
    };
    let rows: Vec<Vec<_>> = answer
        .rows()
        .into_iter()
        .map(|row| row.into_iter().map(|value| value.map(plain)).collect())
        .collect();
    format!("{rows:?} {:?} {:?} {}", answer.sqlstate(), answer.tags(), answer.status())
}

fn form(random: &mut Random) -> (String, Vec<u8>) {
    let sql = if random.below(3) == 0 { change(random) } else { read(random) };
    let form = if random.below(2) == 0 { query(&sql) } else { batch(&sql) };
    (sql, form)
}

fn change(random: &mut Random) -> String {
    let name = random.pick(&NAMES);
    match random.below(24) {
        0 | 14..18 => format!("CREATE TEMP TABLE {name} AS SELECT 1 AS id"),
        1 => format!("CREATE TEMP VIEW {name} AS SELECT 2 AS id"),
        2 => format!("CREATE TEMP TABLE {name} (id int) ON COMMIT DROP"),
        3 => format!("SELECT 4 AS id INTO TEMP {name}"),
        4 => format!("SELECT make('{name}')"),
        5 => format!("DO $$ BEGIN CREATE TEMP TABLE {name} AS SELECT 5 AS id; END $$"),
        6 => format!("ALTER TABLE pg_temp.{name} RENAME TO {}", random.pick(&NAMES)),
        7 => format!("CREATE TEMP TABLE {name} () INHERITS (public.crate)"),
        8 => "DISCARD TEMP".to_owned(),
        9 => "BEGIN".to_owned(),
        10 | 18 => "ROLLBACK".to_owned(),
        11 | 19 => "COMMIT".to_owned(),
        12 => format!("DROP VIEW IF EXISTS pg_temp.{name}"),
        _ => format!("DROP TABLE IF EXISTS pg_temp.{name}"),
    }
}

fn read(random: &mut Random) -> String {
    let from = random.pick(&[
        "crate",
        "shelf",
        "scratch",
        "CRATE",
        "\"crate\"",
        "public.crate",
        "pg_temp.scratch",
        "counted",
        "shelved",
        "named",
        "labelled",
        "(SELECT crates() AS id) x",
        "(SELECT 1 AS id) shelf",
        "generate_series(1, 2) id",
        "pg_class WHERE false",
    ]);
    let what = random.pick(&[
        "count(*)",
        "count(*)",
        "max(id::text)",
        "(SELECT count(*) FROM shelf)",
        "to_regclass('crate')::text, count(*)",
        "'shelf'::regclass::text, count(*)",
        "(NULL::crate) IS NULL",
        "(SELECT bool_or(pg_table_is_visible(oid)) FROM pg_class WHERE relname = 'crate' AND relkind = 'r')",
    ]);
    format!("SELECT {what} FROM {from}")
}
