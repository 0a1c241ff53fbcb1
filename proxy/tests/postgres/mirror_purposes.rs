//! What a mirror is for, done with the blocks of `docs/mirror.md` as they stand there.

use pgrouting_contract::mirror::{MirrorConfig, MirrorReport};
use pgrouting_contract::stage::Stage;

use super::mirror::{Pair, pair};
use super::support::poll;
use super::support::proxy::{Proxy, document};
use super::support::server::{Database, catch_up, own_standby, primary};

const DOC: &str = include_str!("../../../docs/mirror.md");

/// The first block of that language under a heading.
fn block(heading: &str, language: &str) -> &'static str {
    let section = DOC.split_once(heading).unwrap().1;
    let rest = section.split_once(&format!("```{language}\n")).unwrap().1;
    rest.split_once("```").unwrap().0.trim()
}

/// Takes the fields that stand under a heading into a mirror.
fn take(mirror: &mut MirrorConfig, heading: &str) {
    let fields: serde_json::Value = serde_yaml::from_str(block(heading, "yaml")).unwrap();
    let mut all = serde_json::to_value(&*mirror).unwrap();
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    *mirror = serde_json::from_value(all).unwrap();
}

#[test]
fn a_setting_is_tried_at_the_mirror_and_nowhere_else() {
    let heading = "## Try a setting";
    let tables = "CREATE TABLE seen(work_mem text DEFAULT current_setting('work_mem'), cost text DEFAULT current_setting('random_page_cost'))";
    let mut pair = pair(tables, |mirror| take(mirror, heading));
    let mut client = pair.client();
    client.run("INSERT INTO seen DEFAULT VALUES");
    let report = pair.settled(1);
    assert_eq!((report.mirrored, report.verdicts["match"]), (1, 1), "{report:?}");
    assert_eq!(
        pair.both("SELECT work_mem FROM seen"),
        (vec!["4MB".to_owned()], vec![]),
        "what is tried is rolled back"
    );
    let shown = client.column(block(heading, "sql")).join("\n");
    assert!(shown.contains("1 of 1 transactions were run there"), "{shown}");
    // With what it writes kept, it can be looked at.
    pair.proxy.change(|config| {
        config.mirror.as_mut().unwrap().statements = pgrouting_contract::mirror::MirrorStatements::All;
    });
    poll("the setting to be seen there", || {
        client.run("INSERT INTO seen DEFAULT VALUES");
        let there = pair.target.direct().column("SELECT DISTINCT work_mem || ' ' || cost FROM seen");
        (there == ["64MB 1.1"]).then_some(())
    });
    assert_eq!(pair.source.direct().column("SELECT DISTINCT work_mem || ' ' || cost FROM seen"), ["4MB 4"]);
}

#[test]
fn a_cold_replica_is_warmed_by_the_reads_of_others() {
    let heading = "## Warm up a replica";
    let source = Database::create();
    source.direct().run("CREATE TABLE wide(id int PRIMARY KEY, filler text); INSERT INTO wide SELECT g, repeat('x', 400) FROM generate_series(1, 4000) g; ANALYZE wide");
    let mut replica = own_standby();
    catch_up(&mut primary().admin("postgres"), &mut replica.admin("postgres"));
    // With empty buffers.
    replica.stop();
    replica.start();
    let name = source.name.clone();
    let blocks = |server: &super::support::server::Server| -> (u64, u64) {
        let row = server.admin(&name).run(block(heading, "sql")).rows().remove(0);
        let number = |index: usize| row[index].as_deref().unwrap_or("0").parse().unwrap();
        (number(0), number(1))
    };
    let mut config = document();
    config.stage = Stage::Mirror;
    let mut mirror = MirrorConfig::at("127.0.0.1".to_owned(), replica.port);
    take(&mut mirror, heading);
    config.mirror = Some(mirror);
    let target = Database { name: source.name.clone() };
    let pair = Pair { source, target, proxy: Proxy::start(config) };
    let mut client = pair.client();
    poll("reads to be known as such", || {
        client.run("SELECT 1");
        (pair.report().mirrored > 0).then_some(())
    });
    let read_all = |client: &mut super::support::client::Client| {
        let before = pair.settled(1).offered;
        for id in (1..4000).step_by(10) {
            client.run(&format!("SELECT filler FROM wide WHERE id = {id}"));
        }
        pair.settled(before + 400);
    };
    let share = |(hits, reads): (u64, u64), (hits_before, reads_before): (u64, u64)| {
        let (hits, reads) = (hits - hits_before, reads - reads_before);
        hits * 100 / (hits + reads).max(1)
    };
    // A session that ends has told all that it counted.
    let counted = || {
        let mut admin = replica.admin("postgres");
        let sessions = "FROM pg_stat_activity WHERE application_name = 'pgrouting-mirror'";
        admin.run(&format!("SELECT pg_terminate_backend(pid) {sessions}"));
        poll("the sessions of the mirror to be over", || {
            (admin.value(&format!("SELECT count(*) {sessions}")).as_deref() == Some("0")).then_some(())
        });
        blocks(&replica)
    };
    let start = counted();
    read_all(&mut client);
    let cold = counted();
    read_all(&mut client);
    let warm = counted();
    let (first, second) = (share(cold, start), share(warm, cold));
    assert!(
        second == 100 && first < 100,
        "{first} % of the blocks were in the buffers at first, then {second} %"
    );
}

#[test]
fn another_schema_is_tried_with_the_real_traffic() {
    let heading = "## Try another schema, or a new version";
    let pair = pair(
        "CREATE TABLE orders(id int PRIMARY KEY, customer text, total numeric); INSERT INTO orders SELECT g, 'c' || g % 10, g FROM generate_series(1, 2000) g",
        |mirror| take(mirror, heading),
    );
    pair.target.direct().run(
        "CREATE INDEX ON orders(customer); ALTER TABLE orders ALTER total TYPE bigint; \
         ALTER TABLE orders ADD CHECK (total < 10000); ALTER TABLE orders RENAME TO orders_v2; \
         CREATE VIEW orders AS SELECT id, customer, total FROM orders_v2 WHERE customer <> 'c9'",
    );
    let mut client = pair.client();
    for number in 0..200 {
        client.run(&format!("SELECT total FROM orders WHERE id = {}", number * 10 + 1));
        client.run(&format!("SELECT sum(total) FROM orders WHERE customer = 'c{}'", number % 10));
        client.run("BEGIN");
        client.run(&format!("INSERT INTO orders VALUES ({}, 'new', {})", 3000 + number, number * 100));
        client.run("SELECT count(*) FROM orders WHERE customer = 'new'");
        client.run("COMMIT");
    }
    client.run("ALTER TABLE orders ADD note text");
    let report = pair.settled(601);
    let verdicts_of = |text: &str| {
        let of =
            |statement: &&pgrouting_contract::mirror::MirrorStatement| statement.statement.starts_with(text);
        report
            .statements
            .iter()
            .find(of)
            .unwrap_or_else(|| panic!("{text} is not in {report:?}"))
            .verdicts
            .clone()
    };
    assert_eq!(verdicts_of("SELECT sum").get("rows"), Some(&20), "the view leaves out one of ten customers");
    assert_eq!(
        verdicts_of("INSERT INTO orders").get("failed_there"),
        Some(&100),
        "the new check refuses half of them"
    );
    assert_eq!(verdicts_of("ALTER TABLE").get("failed_there"), Some(&1));
    assert_eq!(client.run(block(heading, "sql")).rows().len(), report.statements.len());
    write(&report, &client.column("SHOW MIRROR REPORT").join("\n"));
}

/// Puts the report of this run into the page, where that is asked for.
fn write(report: &MirrorReport, text: &str) {
    let Ok(path) = std::env::var("MIRROR_DOC") else { return };
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- report").unwrap();
    let (marker, rest) = rest.split_once("-->\n").unwrap();
    let after = rest.split_once("<!-- end -->").unwrap().1;
    let text = text.replace(&report.target, "next:5432");
    let page = format!("{before}<!-- report{marker}-->\n```text\n{text}\n```\n<!-- end -->{after}");
    std::fs::write(&path, page).unwrap();
}
