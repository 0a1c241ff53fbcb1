//! The page on the API, made from the definition and the types.
//!
//! The definition has types, defaults, limits and rules, as the API server enforces them; what each value of an enum means
//! is in the types alone, so both are walked together.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::definition::definition;
use crate::duration::DURATION_PATTERN;
use crate::spec::PgRoutingPool;

/// The text of `docs/api.md`.
///
/// # Errors
/// When the types have no JSON form, which would be a mistake in them.
pub fn reference() -> anyhow::Result<String> {
    let definition = definition()?;
    let version = &definition["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"];
    let typed = SchemaSettings::openapi3().into_generator().into_root_schema_for::<PgRoutingPool>();
    let typed = serde_json::to_value(typed)?;
    let types = Types { root: &typed };

    let mut page = PREFACE.to_owned();
    for part in ["spec", "status"] {
        page.push_str(&format!("\n## {part}\n"));
        let typed = types.member(&typed, part);
        let part_schema = &schema["properties"][part];
        let (sections, own): (Vec<_>, Vec<_>) =
            members(part_schema).partition(|(_, schema)| !rows_below(schema).is_empty());
        let own: Map<String, Value> =
            own.into_iter().map(|(name, schema)| (name.clone(), schema.clone())).collect();
        if !own.is_empty() {
            let only = with_properties(part_schema, own);
            page.push_str(&table(part, &only, typed, &types));
        }
        for (name, schema) in sections {
            let said = text(&schema["description"]);
            let need = if is_required(part_schema, name) { " Required." } else { "" };
            page.push_str(&format!("\n### {part}.{name}\n\n{said}{need}\n"));
            page.push_str(&table(name, schema, types.member(typed, name), &types));
            page.push_str(&rules(&format!("{part}.{name}"), schema));
        }
    }
    page.push_str("\n## Rules across members\n\nRefused by the API server like the others.\n");
    let mut own = Vec::new();
    own_rules("the object", schema, &mut own);
    own_rules("spec", &schema["properties"]["spec"], &mut own);
    page.push_str(&rule_table(&own));
    page.push_str(&columns(version));
    Ok(page)
}

const PREFACE: &str = "\
<!-- Generated from the Rust types in crds/ by `make crd`. Do not edit. -->
# API reference

`PgRoutingPool`, `pgrouting.dev/v1alpha1`, namespaced, short name `pgrp`. What is here is what the API server has in its
definition and enforces: a test fails when this page and the types differ. What the fields are for, in context, is in
[operator.md](operator.md); the reasons of conditions are in [conditions.md](conditions.md).

A *duration* is one to four numbers with a unit each, `h`, `m`, `s` or `ms`, as `500ms` or `1h30m`; there are no days. `[]` is each
item of a list, `{}` each value of a map. A field without a default that is not required may be left out.
";

/// The types as schemars has them, references and all.
struct Types<'a> {
    root: &'a Value,
}

impl<'a> Types<'a> {
    /// The schema behind references and behind what may be absent.
    fn resolved(&self, schema: &'a Value) -> &'a Value {
        if let Some(target) = schema["$ref"].as_str().and_then(|path| path.strip_prefix('#')) {
            return self.root.pointer(target).map_or(&Value::Null, |target| self.resolved(target));
        }
        for key in ["anyOf", "allOf"] {
            if let Some(inner) = schema[key].as_array().and_then(|all| all.first()) {
                return self.resolved(inner);
            }
        }
        schema
    }

    fn member(&self, schema: &'a Value, name: &str) -> &'a Value {
        self.resolved(&self.resolved(schema)["properties"][name])
    }

    fn items(&self, schema: &'a Value) -> &'a Value {
        self.resolved(&self.resolved(schema)["items"])
    }

    /// The values of an enum with what each means.
    fn values(&self, schema: &'a Value) -> Vec<(&'a str, &'a str)> {
        let variants = self.resolved(schema)["oneOf"].as_array().into_iter().flatten();
        variants
            .filter_map(|variant| {
                let value = variant["const"].as_str().or_else(|| variant["enum"][0].as_str())?;
                Some((value, variant["description"].as_str().unwrap_or_default()))
            })
            .collect()
    }
}

/// A table of everything below an object, nested fields by their path.
fn table(path: &str, schema: &Value, typed: &Value, types: &Types<'_>) -> String {
    let mut out =
        "\n| field | type | default | limits | meaning |\n| --- | --- | --- | --- | --- |\n".to_owned();
    walk(&inner_path(path, schema), schema, typed, types, &mut out);
    out
}

fn walk(path: &str, schema: &Value, typed: &Value, types: &Types<'_>, out: &mut String) {
    let (schema, typed) = innermost(schema, typed, types);
    for (name, field) in members(schema) {
        let typed = types.member(typed, name);
        let full = if path == "spec" || path == "status" { name.clone() } else { format!("{path}.{name}") };
        let default = match &field["default"] {
            _ if is_required(schema, name) => "required".to_owned(),
            Value::Null | Value::Object(_) => String::new(),
            Value::String(text) if text.is_empty() => "empty".to_owned(),
            Value::String(text) => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        out.push_str(&format!(
            "| `{full}` | {} | {default} | {} | {} |\n",
            kind(field),
            limits(field).join(", "),
            meaning(field, typed, types)
        ));
        walk(&inner_path(&full, field), field, typed, types, out);
    }
}

/// The object that a list or a map is of, at last.
fn innermost<'a>(schema: &'a Value, typed: &'a Value, types: &Types<'a>) -> (&'a Value, &'a Value) {
    if schema["items"].is_object() {
        return innermost(&schema["items"], types.items(typed), types);
    }
    (schema, typed)
}

fn inner_path(path: &str, schema: &Value) -> String {
    if schema["items"].is_object() {
        inner_path(&format!("{path}[]"), &schema["items"])
    } else {
        path.to_owned()
    }
}

fn rows_below(schema: &Value) -> Vec<&String> {
    let schema = if schema["items"].is_object() { &schema["items"] } else { schema };
    members(schema).map(|(name, _)| name).collect()
}

fn members(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

fn with_properties(schema: &Value, properties: Map<String, Value>) -> Value {
    let mut only = schema.clone();
    only["properties"] = Value::Object(properties);
    only
}

fn is_required(schema: &Value, name: &str) -> bool {
    schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name))
}

fn kind(schema: &Value) -> String {
    if schema["enum"].is_array() {
        return "enum".to_owned();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    match schema["type"].as_str() {
        Some("string") if schema["format"] == "date-time" => "time".to_owned(),
        Some("string") if schema["pattern"] == DURATION_PATTERN => "duration".to_owned(),
        Some("array") => format!("list of {}", kind(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!("map of {}", kind(&schema["additionalProperties"]))
        }
        Some("object") if schema["x-kubernetes-preserve-unknown-fields"] == true => "any object".to_owned(),
        Some(kind) => kind.to_owned(),
        None => "any".to_owned(),
    }
}

fn limits(schema: &Value) -> Vec<String> {
    let mut all = Vec::new();
    let span = |least: &str, most: &str, unit: &str| {
        let number = |key: &str| schema[key].as_f64();
        match (number(least), number(most)) {
            (None, None) => None,
            (Some(least), None) => Some(format!("at least {least}{unit}")),
            (None, Some(most)) => Some(format!("at most {most}{unit}")),
            (Some(least), Some(most)) => Some(format!("{least} to {most}{unit}")),
        }
    };
    let is_duration = schema["pattern"] == DURATION_PATTERN;
    if !is_duration {
        all.extend(span("minimum", "maximum", ""));
        all.extend(span("minLength", "maxLength", " characters"));
        all.extend(schema["pattern"].as_str().map(|pattern| format!("`{}`", escaped(pattern))));
    }
    all.extend(span("minItems", "maxItems", " items"));
    all.extend(span("minProperties", "maxProperties", " entries"));
    if schema["x-kubernetes-list-type"] == "set" {
        all.push("each once".to_owned());
    }
    if let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() {
        let keys: Vec<_> = keys.iter().filter_map(Value::as_str).map(|key| format!("`{key}`")).collect();
        all.push(format!("each {} once", keys.join(", ")));
    }
    for (inside, noun) in [("items", "each"), ("additionalProperties", "each value")] {
        let inner = &schema[inside];
        if inner.is_object() && inner["type"] != "object" {
            all.extend(limits(inner).into_iter().map(|limit| format!("{noun} {limit}")));
        }
    }
    all
}

fn meaning(schema: &Value, typed: &Value, types: &Types<'_>) -> String {
    let mut said = text(&schema["description"]);
    let (schema, typed) = innermost(schema, typed, types);
    let described = types.values(typed);
    for value in schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let means = described.iter().find(|(known, _)| *known == value).map(|(_, means)| one_line(means));
        said.push_str(&match means.filter(|means| !means.is_empty()) {
            Some(means) => format!("<br>`{value}`: {means}"),
            None => format!("<br>`{value}`"),
        });
    }
    said
}

/// What the API server refuses beyond types and limits, at any depth of a member.
fn rules(path: &str, schema: &Value) -> String {
    let mut all = Vec::new();
    deep_rules(path, schema, &mut all);
    if all.is_empty() { String::new() } else { rule_table(&all) }
}

fn deep_rules(path: &str, schema: &Value, all: &mut Vec<(String, String, String)>) {
    own_rules(path, schema, all);
    if schema["items"].is_object() {
        deep_rules(&format!("{path}[]"), &schema["items"], all);
    }
    if schema["additionalProperties"].is_object() {
        deep_rules(&format!("{path}{{}}"), &schema["additionalProperties"], all);
    }
    for (name, field) in members(schema) {
        deep_rules(&format!("{path}.{name}"), field, all);
    }
}

fn own_rules(path: &str, schema: &Value, all: &mut Vec<(String, String, String)>) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let field = rule["fieldPath"].as_str().unwrap_or_default();
        all.push((format!("{path}{field}"), text(&rule["message"]), text(&rule["rule"])));
    }
}

fn rule_table(rules: &[(String, String, String)]) -> String {
    let mut out = "\n| at | what is said | rule (CEL) |\n| --- | --- | --- |\n".to_owned();
    for (path, message, rule) in rules {
        out.push_str(&format!("| `{path}` | {message} | `{rule}` |\n"));
    }
    out
}

fn columns(version: &Value) -> String {
    let mut out =
        "\n## Columns of `kubectl get pgrp`\n\n| column | field | shown |\n| --- | --- | --- |\n".to_owned();
    for column in version["additionalPrinterColumns"].as_array().into_iter().flatten() {
        let when = if column["priority"].as_i64().unwrap_or(0) > 0 { "with `-o wide`" } else { "always" };
        let path = text(&column["jsonPath"]);
        let name = text(&column["name"]).to_uppercase();
        out.push_str(&format!("| {name} | `{path}` | {when} |\n"));
    }
    out
}

/// On one line of a table, if it is a text.
fn text(value: &Value) -> String {
    one_line(value.as_str().unwrap_or_default())
}

fn one_line(text: &str) -> String {
    escaped(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A bar ends a cell, in code too.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests;
