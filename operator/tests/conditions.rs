//! The page on conditions has every word that the code can write, and no other.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Words = BTreeSet<String>;

#[test]
fn each_type_of_condition_has_a_section_and_no_other() {
    let mut sections: Vec<String> = sections().into_iter().map(|(name, _)| name).collect();
    assert_eq!(sections.pop().as_deref(), Some("Events"));
    let types = arms("status/condition.rs", "impl ConditionType {");
    assert_eq!(sections.iter().cloned().collect::<Words>(), types.values().cloned().collect());
}

#[test]
fn page_has_every_reason_of_a_condition_and_no_other() {
    let mut known: Words = arms("status/condition.rs", "impl Reason {").into_values().collect();
    known.extend(gate_reasons());
    let documented: Words =
        sections().into_iter().filter(|(name, _)| name != "Events").flat_map(|(_, words)| words).collect();
    assert_eq!(documented, known);
}

#[test]
fn page_has_every_reason_of_an_event_and_no_other() {
    let (_, documented) = sections().pop().unwrap();
    let known: Words = arms("events.rs", "impl EventReason {").into_values().collect();
    assert_eq!(documented.into_iter().collect::<Words>(), known);
}

/// A word that no step uses is documented in vain.
#[test]
fn every_word_is_used_by_some_step() {
    let mut uses = String::new();
    for file in sources(&root().join("operator/src")) {
        let name = file.to_string_lossy();
        if !name.ends_with("tests.rs") && !name.ends_with("status/condition.rs") {
            uses.push_str(&std::fs::read_to_string(&file).unwrap());
        }
    }
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_alphanumeric());
    let is_used = |word: &str| uses.match_indices(word).any(|(at, _)| ends(&uses[at + word.len()..]));
    let of = |kind: &str, arms: BTreeMap<String, String>| -> Vec<String> {
        arms.into_keys().map(|variant| format!("{kind}::{variant}")).collect()
    };
    let mut words = of("ConditionType", arms("status/condition.rs", "impl ConditionType {"));
    words.extend(of("Reason", arms("status/condition.rs", "impl Reason {")));
    words.extend(of("EventReason", arms("events.rs", "impl EventReason {")));
    let idle: Vec<_> = words.into_iter().filter(|word| !is_used(word)).collect();
    assert_eq!(idle, [""; 0]);
}

/// Wherever a page names a reason, it is one of these, or one of the proxies'.
#[test]
fn no_page_names_a_reason_that_does_not_exist() {
    let mut known: Words = arms("status/condition.rs", "impl Reason {").into_values().collect();
    known.extend(gate_reasons());
    known.extend(arms("events.rs", "impl EventReason {").into_values());
    let mut wrong = Vec::new();
    for file in std::fs::read_dir(root().join("docs")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for (at, _) in text.match_indices("reason `") {
            let word = text[at + "reason `".len()..].split('`').next().unwrap();
            if word.starts_with(char::is_uppercase) && !known.contains(word) {
                wrong.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

/// Sections of the page, each with the words that begin its rows.
fn sections() -> Vec<(String, Vec<String>)> {
    let page = read("docs/conditions.md");
    let mut sections = Vec::new();
    for part in page.split("\n## ").skip(1) {
        let (name, body) = part.split_once('\n').unwrap();
        let rows = body.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let words: Vec<_> = rows.map(str::to_owned).collect();
        let distinct: BTreeSet<_> = words.iter().collect();
        assert_eq!(distinct.len(), words.len(), "{name} has a reason twice");
        sections.push((name.to_owned(), words));
    }
    sections
}

/// What `as_str` of an enum gives, by variant.
fn arms(file: &str, begin: &str) -> BTreeMap<String, String> {
    let text = read(&format!("operator/src/{file}"));
    let body = text.split_once(begin).unwrap().1.split_once("\n}\n").unwrap().0;
    let arms = body.lines().filter_map(|line| {
        let (variant, word) = line.trim().strip_prefix("Self::")?.split_once(" => ")?;
        let word = word.trim_end_matches(',');
        let word = word
            .strip_prefix('"')
            .map_or_else(|| constant(word), |word| Some(word.trim_end_matches('"').to_owned()));
        Some((variant.to_owned(), word?))
    });
    let arms: BTreeMap<_, _> = arms.collect();
    assert!(arms.len() > 5, "{begin} has no words any more");
    arms
}

/// The text of a constant, where one is meant.
fn constant(name: &str) -> Option<String> {
    let images = read("operator/src/images.rs");
    let value = images.split_once(&format!("const {name}: &str = \""))?.1;
    Some(value.split_once('"')?.0.to_owned())
}

/// The reasons that stand for gates.
fn gate_reasons() -> Words {
    let text = read("operator/src/status/condition.rs");
    let table = text.split_once("const GATE_REASONS").unwrap().1.split_once("];\n").unwrap().0;
    let rows = table.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').nth(2));
    rows.map(str::to_owned).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else {
            files.push(path);
        }
    }
    files
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
