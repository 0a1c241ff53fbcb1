//! The page on the API is current, and says what the definition has.

use std::path::Path;

use super::*;

#[test]
fn generated_page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md");
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stored == reference().unwrap(), "{} is stale: run `make crd`", path.display());
}

#[test]
fn every_field_default_and_rule_of_the_definition_stands_there() {
    fn walk(schema: &Value, lacking: &mut Vec<String>, page: &str) {
        for (name, field) in members(schema) {
            let is_there = page.contains(&format!("`{name}` |"))
                || page.contains(&format!(".{name}` |"))
                || page.contains(&format!(".{name}\n"));
            if !is_there {
                lacking.push(name.clone());
            }
            if field["description"].as_str().is_none_or(str::is_empty) {
                lacking.push(format!("what {name} means"));
            }
            walk(field, lacking, page);
        }
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            if !page.contains(&text(&rule["rule"])) {
                lacking.push(text(&rule["rule"]));
            }
        }
        if schema["items"].is_object() {
            walk(&schema["items"], lacking, page);
        }
    }
    let page = reference().unwrap();
    let definition = definition().unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let mut lacking = Vec::new();
    walk(&schema["spec"], &mut lacking, &page);
    walk(&schema["status"], &mut lacking, &page);
    assert_eq!(lacking, [""; 0]);
}

#[test]
fn each_value_of_an_enum_says_what_it_means() {
    let page = reference().unwrap();
    let silent: Vec<_> = page
        .lines()
        .filter(|line| line.contains("<br>`"))
        .flat_map(|line| line.split("<br>").skip(1))
        .filter(|value| !value.contains("`: "))
        .collect();
    assert_eq!(silent, [""; 0]);
    assert!(page.contains("`Mirror`: "), "values are found at all");
}

#[test]
fn no_row_is_torn() {
    for line in reference().unwrap().lines().filter(|line| line.starts_with('|')) {
        let bars = line.replace("\\|", "").matches('|').count();
        assert!(bars == 6 || bars == 4, "{bars} bars: {line}");
    }
}
