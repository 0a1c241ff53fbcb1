//! The import table of this crate: data moves down the page, and so do imports.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::{Path, PathBuf};

/// A module, what it may import of this crate, and what of the other two.
///
/// In the order of the path from the custom resource to its status. A step knows its earlier steps only; a child never
/// imports its face.
const MAY_IMPORT: [(&str, &[&str], &[&str]); 62] = [
    ("names", &[], &[]),
    ("time", &[], &[]),
    ("position", &["time"], &["crds", "contract"]),
    ("metrics/rollout", &[], &["crds"]),
    ("metrics", &["metrics/rollout"], &[]),
    ("certificates", &[], &["contract"]),
    ("lease", &[], &[]),
    ("watches", &["metrics"], &[]),
    ("dns", &[], &[]),
    ("images", &[], &["crds"]),
    ("fleet", &["images", "watches"], &["crds"]),
    ("resolve/files", &[], &["crds"]),
    ("resolve", &["dns", "names", "resolve/files"], &["crds", "contract"]),
    ("named", &["lease", "resolve", "resolve/files"], &["crds"]),
    ("validate/tls", &["names", "certificates", "resolve", "resolve/files"], &["crds", "contract"]),
    ("validate/mirror", &["position", "validate/tls"], &["crds", "contract"]),
    ("validate", &["names", "position", "resolve", "validate/mirror", "validate/tls"], &["crds", "contract"]),
    ("desired/labels", &["names", "validate"], &[]),
    ("desired/secret", &["names", "validate", "certificates", "desired/labels"], &["contract"]),
    (
        "desired/config_map",
        &["names", "position", "validate", "desired/labels", "desired/secret"],
        &["crds", "contract"],
    ),
    ("desired/service", &["names", "validate", "desired/labels"], &["crds"]),
    ("desired/disruption_budget", &["names", "validate", "desired/labels"], &[]),
    ("desired/network_policy", &["names", "validate", "desired/labels"], &["crds"]),
    (
        "desired/deployment",
        &["names", "validate", "desired/labels", "desired/config_map", "desired/secret"],
        &[],
    ),
    ("desired", &["certificates", "resolve", "validate", "desired/config_map"], &["contract"]),
    ("apply", &["names", "metrics", "resolve", "desired", "desired/config_map"], &[]),
    ("proxies", &["metrics", "certificates", "desired/config_map"], &["contract"]),
    ("observe/mirror", &[], &["contract"]),
    (
        "observe",
        &["names", "resolve", "desired/config_map", "proxies", "observe/mirror"],
        &["crds", "contract"],
    ),
    ("rollout/text", &[], &[]),
    ("rollout/reading", &[], &["crds"]),
    ("rollout/progress", &[], &["crds"]),
    ("rollout/figures", &[], &["contract"]),
    ("rollout/spans", &["position", "rollout/figures"], &[]),
    ("rollout/stand", &["position", "rollout/reading", "rollout/spans", "rollout/text"], &["crds"]),
    (
        "rollout/compared",
        &["time", "rollout/reading", "rollout/spans", "rollout/stand", "rollout/text"],
        &["crds", "contract"],
    ),
    ("rollout/moments", &["rollout/reading", "rollout/spans", "rollout/stand", "rollout/text"], &["crds"]),
    (
        "rollout/gates",
        &[
            "rollout/compared",
            "rollout/moments",
            "rollout/reading",
            "rollout/spans",
            "rollout/stand",
            "rollout/text",
        ],
        &["crds", "contract"],
    ),
    ("rollout/sight", &["rollout/reading"], &["crds"]),
    ("rollout/turn", &["position", "rollout/sight"], &["crds"]),
    (
        "rollout/lookout",
        &[
            "observe",
            "position",
            "time",
            "rollout/compared",
            "rollout/figures",
            "rollout/gates",
            "rollout/reading",
            "rollout/sight",
            "rollout/spans",
            "rollout/stand",
            "rollout/text",
        ],
        &["crds", "contract"],
    ),
    ("rollout/fold", &["time", "rollout/reading", "rollout/sight"], &["crds"]),
    (
        "rollout/machine",
        &["position", "time", "rollout/progress", "rollout/reading", "rollout/sight", "rollout/text"],
        &["crds"],
    ),
    (
        "rollout",
        &["position", "rollout/fold", "rollout/machine", "rollout/progress", "rollout/sight"],
        &["crds"],
    ),
    ("prometheus_query", &["rollout/stand"], &[]),
    ("settings", &["prometheus_query"], &[]),
    ("status/condition", &["images", "time"], &["crds"]),
    (
        "status/found",
        &["images", "resolve", "validate/tls", "desired/config_map", "apply", "observe", "rollout/progress"],
        &["crds"],
    ),
    ("status/fleet", &["images", "observe", "status/condition", "status/found"], &["crds", "contract"]),
    (
        "status/rollout",
        &["position", "rollout/progress", "status/condition", "status/found"],
        &["crds", "contract"],
    ),
    (
        "status/mirror",
        &["observe/mirror", "position", "status/condition", "status/found", "time"],
        &["crds", "contract"],
    ),
    (
        "status/findings",
        &[
            "resolve",
            "apply",
            "observe",
            "status/condition",
            "status/fleet",
            "status/found",
            "status/mirror",
            "status/rollout",
        ],
        &["crds", "contract"],
    ),
    (
        "status",
        &[
            "names",
            "resolve",
            "observe",
            "status/condition",
            "status/findings",
            "status/found",
            "status/mirror",
            "time",
        ],
        &["crds"],
    ),
    ("events", &[], &["crds"]),
    (
        "memory",
        &[
            "metrics",
            "certificates",
            "lease",
            "desired/config_map",
            "desired/secret",
            "apply",
            "proxies",
            "observe",
            "rollout/lookout",
            "rollout/stand",
        ],
        &["crds", "contract"],
    ),
    (
        "controller/judge",
        &[
            "observe",
            "position",
            "prometheus_query",
            "proxies",
            "rollout",
            "rollout/lookout",
            "rollout/progress",
            "rollout/sight",
            "rollout/stand",
            "rollout/turn",
            "memory",
        ],
        &["crds", "contract"],
    ),
    (
        "controller/pass",
        &[
            "dns",
            "fleet",
            "images",
            "names",
            "metrics",
            "lease",
            "watches",
            "position",
            "prometheus_query",
            "resolve",
            "validate",
            "desired",
            "desired/config_map",
            "desired/network_policy",
            "apply",
            "proxies",
            "observe",
            "status",
            "status/found",
            "events",
            "memory",
            "controller/judge",
        ],
        &["crds"],
    ),
    (
        "controller",
        &["names", "named", "settings", "watches", "resolve", "apply", "memory", "controller/pass"],
        &["crds"],
    ),
    ("installed", &["resolve"], &["crds"]),
    ("health", &["metrics", "watches"], &[]),
    (
        "fixtures",
        &["names", "position", "resolve", "validate", "desired", "desired/config_map"],
        &["crds", "contract"],
    ),
    ("lib", &[], &[]),
];

/// Steps without I/O: no client, no async, no clock.
const PURE: [&str; 32] = [
    "names",
    "images",
    "position",
    "rollout",
    "rollout/compared",
    "rollout/figures",
    "rollout/fold",
    "rollout/gates",
    "rollout/lookout",
    "rollout/machine",
    "rollout/moments",
    "rollout/progress",
    "rollout/sight",
    "rollout/spans",
    "rollout/stand",
    "rollout/turn",
    "validate",
    "validate/mirror",
    "validate/tls",
    "resolve/files",
    "desired",
    "desired/labels",
    "desired/config_map",
    "desired/secret",
    "desired/service",
    "desired/disruption_budget",
    "desired/network_policy",
    "desired/deployment",
    "status/findings",
    "status/fleet",
    "status/mirror",
    "status/rollout",
];

#[test]
fn imports_follow_the_table() {
    let mut faults = Vec::new();
    for (module, text) in modules() {
        let Some((_, ours, others)) = MAY_IMPORT.iter().find(|(name, ..)| *name == module) else {
            faults.push(format!("{module} is not in the table"));
            continue;
        };
        for import in imports(&text) {
            if let Some(path) = import.strip_prefix("crate::") {
                let target = target(path);
                if !ours.contains(&target.as_str()) {
                    faults.push(format!("{module} may not import {target}"));
                }
            }
            for (name, prefix) in [("crds", "pgrouting_crds::"), ("contract", "pgrouting_contract::")] {
                if import.starts_with(prefix) && !others.contains(&name) {
                    faults.push(format!("{module} may not import {name}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn pure_steps_have_no_client_no_async_and_no_clock() {
    for (module, text) in modules() {
        if PURE.contains(&module.as_str()) {
            let mut words = text.split(|c: char| !c.is_alphanumeric());
            assert!(words.all(|word| word != "Client"), "{module} has a Client");
            for forbidden in ["async ", ".await", "Timestamp::now", "Instant::now", "tokio::"] {
                assert!(!text.contains(forbidden), "{module} has {forbidden}");
            }
        }
    }
}

/// Each source file but main and the tests, by its module's path.
fn modules() -> Vec<(String, String)> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect(&src, &mut files);
    let mut modules = Vec::new();
    for file in files {
        let path = file.strip_prefix(&src).unwrap().with_extension("");
        let name = path.to_str().unwrap().to_owned();
        if name != "main" && !name.ends_with("/tests") {
            modules.push((name, std::fs::read_to_string(&file).unwrap()));
        }
    }
    assert!(modules.len() > 20, "the source is not where it should be");
    modules
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The paths of all `use` lines, braces of several lines joined.
fn imports(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    let mut imports = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find("\nuse ") {
        let tail = &rest[at + 5..];
        let end = tail.find(';').unwrap();
        imports.push(tail[..end].split_whitespace().collect::<Vec<_>>().join(" "));
        rest = &tail[end..];
    }
    imports
}

/// `desired::config_map::Document` is in `desired/config_map`, `desired::{DesiredError}` in `desired`.
fn target(path: &str) -> String {
    let mut parts = path.split("::");
    let first = parts.next().unwrap().to_owned();
    match parts.next() {
        Some(second) if second.starts_with(|c: char| c.is_ascii_lowercase()) && parts.next().is_some() => {
            format!("{first}/{second}")
        }
        _ => first,
    }
}
