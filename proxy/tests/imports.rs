//! Holds the table of who may import whom.
//!
//! Data moves down the path of a query and imports point down it too. A module may import what stands in its row, and
//! itself; what `crate::x::y` is used anywhere in its files counts, inside functions too.
#![expect(clippy::unwrap_used, reason = "a test stops at what it cannot read")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module with the modules that it may import.
const TABLE: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("tls", &[]),
    ("socket", &["tls"]),
    ("catalog", &[]),
    ("classify", &["catalog"]),
    ("catalogs", &["auth", "catalog", "classify", "fleet", "server"]),
    ("tally", &[]),
    ("audit", &["classify", "tally"]),
    ("sites", &["classify", "tally"]),
    ("transaction", &["wire"]),
    ("error", &["wire"]),
    ("lot", &[]),
    ("metrics", &[]),
    ("pace", &[]),
    ("auth", &["wire"]),
    ("topology", &[]),
    ("config", &[]),
    ("route", &["classify", "topology"]),
    ("server", &["classify", "socket", "wire", "auth", "tls", "transaction", "error"]),
    ("pool", &["server"]),
    ("cancel", &["server", "tls", "wire"]),
    ("admin_tls", &["tls"]),
    ("peers", &["admin_tls", "wire"]),
    ("monitor", &["wire", "auth", "positions", "server"]),
    ("election", &["topology"]),
    ("standing", &["positions", "topology"]),
    ("positions", &["auth", "server"]),
    ("roles", &["wire", "auth", "server"]),
    ("roster", &["cancel", "pace", "server", "socket"]),
    (
        "fleet",
        &[
            "auth",
            "config",
            "election",
            "monitor",
            "pool",
            "positions",
            "server",
            "standing",
            "tls",
            "topology",
        ],
    ),
    ("mirror", &["auth", "classify", "fleet", "lot", "pool", "server", "tls", "transaction", "wire"]),
    ("timekeeper", &["cancel", "fleet", "metrics", "pace", "roster"]),
    ("control", &["auth", "cancel", "config", "fleet", "pool", "tls"]),
    (
        "console",
        &[
            "cancel", "control", "error", "fleet", "metrics", "mirror", "pool", "roster", "server", "socket",
            "wire",
        ],
    ),
    (
        "session",
        &[
            "audit",
            "auth",
            "cancel",
            "catalog",
            "catalogs",
            "classify",
            "console",
            "error",
            "fleet",
            "lot",
            "metrics",
            "mirror",
            "pace",
            "peers",
            "pool",
            "positions",
            "roles",
            "roster",
            "route",
            "server",
            "sites",
            "socket",
            "tls",
            "transaction",
            "wire",
        ],
    ),
    ("listener", &["route", "session"]),
    (
        "admin",
        &[
            "admin_tls",
            "audit",
            "cancel",
            "catalogs",
            "classify",
            "config",
            "control",
            "error",
            "fleet",
            "metrics",
            "mirror",
            "route",
            "sites",
            "timekeeper",
            "transaction",
            "wire",
        ],
    ),
];

#[test]
fn every_module_imports_only_what_the_table_allows() {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for file in files(&source()) {
        let module = module_of(&file);
        if matches!(module.as_str(), "main" | "lib") {
            continue;
        }
        let Some((_, allowed)) = TABLE.iter().find(|(name, _)| *name == module) else {
            faults.push(format!("{}: module {module} has no row", file.display()));
            continue;
        };
        seen.insert(module.clone());
        for imported in imports(&fs::read_to_string(&file).unwrap()) {
            if imported != module && !allowed.contains(&imported.as_str()) {
                faults.push(format!("{}: {module} must not import {imported}", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(seen.len(), TABLE.len(), "a row has no module");
}

#[test]
fn no_file_imports_its_own_face() {
    let mut faults = Vec::new();
    for file in files(&source()) {
        let relative = file.strip_prefix(source()).unwrap().with_extension("");
        let Some(folder) = relative.parent().and_then(Path::to_str).filter(|folder| !folder.is_empty())
        else {
            continue;
        };
        if relative.ends_with("tests") {
            continue;
        }
        let face = format!("crate::{}::", folder.replace('/', "::"));
        let text = fs::read_to_string(&file).unwrap();
        for rest in text.split(&face).skip(1) {
            // What follows the face is a child's name in lower case, or an item of the face itself.
            if rest.starts_with(|c: char| c.is_ascii_uppercase() || c == '{') {
                faults.push(format!("{}: imports from {face}", file.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn every_file_says_first_what_it_is() {
    for file in files(&source()) {
        let text = fs::read_to_string(&file).unwrap();
        let is_tests = file.file_stem().is_some_and(|stem| stem == "tests");
        assert!(is_tests || text.starts_with("//! "), "{}", file.display());
    }
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

fn module_of(file: &Path) -> String {
    let relative = file.strip_prefix(source()).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

fn imports(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.split("crate::").skip(1))
        .map(|rest| rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect())
        .collect()
}
