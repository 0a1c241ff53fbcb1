//! The pages: links that lead somewhere, rights that are the chart's, figures that were measured.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pgrouting_e2e::cluster::root;
use serde_yaml::Value;

#[test]
fn every_relative_link_leads_to_a_file_and_a_heading() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for page in pages() {
        for target in links(&without_code(&read(&page))) {
            if target.contains("://") {
                continue;
            }
            seen += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let has_anchor = || anchors(&read(&path)).contains(anchor);
            if !path.exists() || (!anchor.is_empty() && !has_anchor()) {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert_eq!(broken, [""; 0]);
    assert!(seen > 50, "only {seen} links are found");
}

/// A page that nobody is led to is read by nobody.
#[test]
fn the_readme_leads_to_every_page() {
    let readme = read(&root().join("README.md"));
    let led: BTreeSet<_> = links(&readme).into_iter().collect();
    for page in pages() {
        let path = page.strip_prefix(root()).unwrap();
        if path.starts_with("docs") {
            let name = path.to_str().unwrap();
            assert!(led.contains(name), "README.md does not lead to {name}");
        }
    }
}

/// docs/security.md has a row for each rule of the operator's, with its verbs.
#[test]
fn rights_on_the_page_are_those_of_the_chart() {
    let templates = read(&root().join("charts/pgrouting/templates/_names.tpl"));
    let rules =
        templates.split_once("\"pgrouting.rules\" -}}\n").unwrap().1.split_once("{{- end }}").unwrap().0;
    let rules: Vec<Value> = serde_yaml::from_str(rules).unwrap();
    let words = |value: &Value| -> BTreeSet<String> {
        value.as_sequence().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let granted: BTreeSet<_> =
        rules.iter().map(|rule| (words(&rule["resources"]), words(&rule["verbs"]))).collect();
    assert!(granted.len() > 5);

    let page = read(&root().join("docs/security.md"));
    let table = page.split_once("| resources | verbs | why |").unwrap().1.split_once("\n\n").unwrap().0;
    let told: BTreeSet<_> = table
        .lines()
        .skip(2)
        .map(|row| {
            let cells: Vec<_> = row.split('|').collect();
            let of = |cell: &str| -> BTreeSet<String> {
                cell.split(", ").map(|word| word.trim().trim_matches('`').to_owned()).collect()
            };
            (of(cells[1]), of(cells[2]))
        })
        .collect();
    assert_eq!(told, granted);
}

/// Pages that tell of speed and memory take each figure with a fraction, and each large one, out of the results.
#[test]
fn figures_of_the_benchmark_are_in_its_results() {
    let results = read(&root().join("bench/RESULTS.md"));
    let known: BTreeSet<_> = numbers(&results).into_iter().collect();
    let mut unknown = Vec::new();
    for page in ["docs/sizing.md", "docs/comparison.md"] {
        let text = read(&root().join(page));
        let measured = text
            .lines()
            .filter(|line| line.contains(" ms") || line.contains("KiB") || line.starts_with("| "));
        for line in measured.filter(|line| !line.contains("÷")) {
            let fractions =
                numbers(line).into_iter().filter(|number| number.contains('.') || number.contains(','));
            unknown.extend(
                fractions
                    .filter(|number| !known.contains(number) && !is_version(line, number))
                    .map(|number| format!("{page}: {number}: {line}")),
            );
        }
    }
    assert_eq!(unknown, [""; 0]);
}

/// A version of a program is no figure, nor is a limit that a field has.
fn is_version(line: &str, number: &str) -> bool {
    ["since ", "PgBouncer ", "Pgpool-II ", "Apache-", "AGPL-", "PerProxy` ("]
        .iter()
        .any(|before| line.contains(&format!("{before}{number}")))
}

fn numbers(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_matches(['.', ',']));
    words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned).collect()
}

fn pages() -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for folder in [".", "docs", "bench"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    assert!(pages.len() > 15);
    pages
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| format!("{}: {error}", path.display()))
}

/// The text without what stands in fences and in backticks.
fn without_code(text: &str) -> String {
    let mut kept = String::new();
    for (index, part) in text.split("```").enumerate() {
        if index % 2 == 0 {
            kept.extend(part.split('`').step_by(2));
        }
    }
    kept
}

fn links(text: &str) -> Vec<String> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains(char::is_whitespace)).map(str::to_owned).collect()
}

/// Headings as GitHub makes anchors of them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}
