//! A Django application, set up as docs/frameworks.md says, behind a pool that splits.
//!
//! Settings and context manager are the blocks of that page, written to files as they stand there.

use std::path::Path;
use std::process::{Command, Stdio};

use pgrouting_contract::split::Consistency;

use super::failover::Set;
use super::support::free_port;
use super::support::proxy::local;
use super::support::server::password_of;

const TREE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Every promise that the application has checked says so; fewer lines are promises that nobody has looked at.
const PROMISES: usize = 13;

#[test]
fn django_as_the_page_has_it_migrates_reads_on_the_replica_and_sees_its_writes() {
    let primary_port = free_port();
    let set = Set::of(1, |config| {
        config.process.primary_listen = Some(local(primary_port));
        config.split.consistency = Consistency::Session;
    });
    // The replica is behind by more than the application takes from a write to the read after it.
    let mut standby = set.servers[1].admin("postgres");
    standby.run("ALTER SYSTEM SET recovery_min_apply_delay = 400");
    standby.run("SELECT pg_reload_conf()");

    let folder = set.proxy.directory.join("django");
    copy(&Path::new(TREE).join("e2e/django"), &folder);
    write_blocks_of_the_page(&folder);
    let python = python();
    let run = |arguments: &[&str]| -> String {
        let output = Command::new(&python)
            .args(arguments)
            .current_dir(&folder)
            .env("DJANGO_SETTINGS_MODULE", "shop.settings")
            .env("POOL_HOST", "127.0.0.1")
            .env("POOL_PORT", set.proxy.port.to_string())
            .env("PRIMARY_PORT", primary_port.to_string())
            .env("DB_NAME", "postgres")
            .env("DB_USER", "app")
            .env("DB_PASSWORD", password_of("app"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}{errors}");
        said
    };
    let replica = "pgrouting_proxy_server_leases_total{server=\"two\"}";
    let before = set.proxy.metric(replica);
    let migrated = run(&["manage.py", "migrate", "--database", "primary"]);
    assert!(migrated.contains("shop.0001_initial... OK"), "{migrated}");
    assert_eq!(set.proxy.metric(replica), before, "nothing of a migration runs on the replica");
    let said = run(&["check.py"]);
    assert_eq!(said.matches("holds: ").count(), PROMISES, "{said}");
}

/// The page's Python blocks that begin with the name of a file, as these files.
fn write_blocks_of_the_page(folder: &Path) {
    let page = std::fs::read_to_string(Path::new(TREE).join("docs/frameworks.md")).unwrap();
    let mut written = Vec::new();
    for block in page.split("```python\n").skip(1) {
        let block = block.split_once("```").unwrap().0;
        let Some(name) = block.lines().next().unwrap().strip_prefix("# ") else { continue };
        if name.starts_with("shop/") {
            std::fs::write(folder.join(name), block).unwrap();
            written.push(name);
        }
    }
    assert_eq!(written, ["shop/settings.py", "shop/routing.py"]);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// A Python that has Django, out of the cache.
fn python() -> String {
    let script = format!("{TREE}/e2e/django/python.sh");
    let output = Command::new(&script).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{script}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
