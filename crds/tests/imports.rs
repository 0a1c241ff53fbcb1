//! The API types import nothing of ours but each other, downwards.

use std::path::Path;

/// A module and what it may import, in the order of the data's path.
const MAY_IMPORT: [(&str, &[&str]); 17] = [
    ("duration", &[]),
    ("stage", &[]),
    ("time", &[]),
    ("spec/credentials", &[]),
    ("spec/pooling", &["duration"]),
    ("spec/proxy", &["duration"]),
    ("spec/split", &["duration"]),
    ("spec/tls", &[]),
    ("spec/console", &[]),
    ("spec/mirror", &["duration", "spec/credentials", "spec/pooling", "spec/tls"]),
    ("spec/gates", &["duration"]),
    ("spec/rollout", &["duration", "stage", "spec/gates"]),
    ("status/rollout", &["duration", "stage", "time"]),
    ("status", &["time", "status/rollout"]),
    // The derive ties a kind to its status, so these two know each other.
    (
        "spec",
        &[
            "duration",
            "status",
            "spec/console",
            "spec/credentials",
            "spec/mirror",
            "spec/pooling",
            "spec/proxy",
            "spec/rollout",
            "spec/split",
            "spec/tls",
        ],
    ),
    ("definition", &["spec"]),
    ("reference", &["definition", "duration", "spec"]),
];

#[test]
fn imports_follow_the_table() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (module, allowed) in MAY_IMPORT {
        let text = std::fs::read_to_string(src.join(format!("{module}.rs"))).unwrap();
        for line in text.lines().filter(|line| line.trim_start().starts_with("use ")) {
            assert!(!line.contains("pgrouting_"), "{module}: {line}");
            if let Some(rest) = line.trim_start().strip_prefix("use crate::") {
                let target = target(rest);
                assert!(allowed.contains(&target.as_str()), "{module} may not import {target}");
            }
        }
    }
}

/// `spec::pooling::Pooling` is in `spec/pooling`, `spec::Stage` in `spec`.
fn target(path: &str) -> String {
    let parts: Vec<_> = path.split("::").collect();
    parts[..parts.len() - 1].join("/")
}
