//! The import table of this crate. The operator is not among its dependencies, so that it cannot be imported at all.

use std::path::Path;

/// A module and what it may import of this crate, in the order of the data's path.
const MAY_IMPORT: [(&str, &[&str]); 14] = [
    ("names", &[]),
    ("settings", &[]),
    ("table", &[]),
    ("text", &[]),
    ("pods", &[]),
    ("decide", &[]),
    ("explain", &[]),
    ("render/facts", &[]),
    ("render/mirror", &["pods", "render/facts", "text"]),
    ("render/rollout", &["render/facts", "table", "text"]),
    ("render/servers", &["pods", "render/facts", "table", "text"]),
    ("render", &["pods", "render/facts", "table"]),
    ("cluster", &["decide", "names", "settings"]),
    ("proxies", &["cluster", "names", "pods"]),
];

/// Modules without I/O: no client, no clock, nothing to wait for.
const PURE: [&str; 9] = [
    "decide",
    "explain",
    "pods",
    "render",
    "render/mirror",
    "render/rollout",
    "render/servers",
    "table",
    "text",
];

#[test]
fn imports_follow_the_table() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (module, allowed) in MAY_IMPORT {
        let text = std::fs::read_to_string(src.join(format!("{module}.rs"))).unwrap();
        for rest in text.lines().filter_map(|line| line.trim_start().strip_prefix("use crate::")) {
            let parts: Vec<_> = rest.split("::").collect();
            let target = parts[..parts.len() - 1].join("/");
            assert!(allowed.contains(&target.as_str()), "{module} may not import {target}");
        }
        for forbidden in ["Client", "async ", ".await", "Timestamp::now", "tokio::"] {
            assert!(!PURE.contains(&module) || !text.contains(forbidden), "{module} has {forbidden}");
        }
    }
}
