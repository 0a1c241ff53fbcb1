//! The definition is current, bounded, and holds what it promises.

use std::path::Path;

use super::*;

fn spec_schema() -> Value {
    definition().unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

#[test]
fn generated_file_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("pgroutingpools.yaml");
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == definition_yaml().unwrap(),
        "{} is stale: run `cargo run -p pgrouting-crds --bin crdgen > crds/pgroutingpools.yaml`",
        path.display()
    );
}

#[test]
fn every_list_map_and_text_of_the_spec_is_bounded() {
    fn walk(path: &str, schema: &Value, unbounded: &mut Vec<String>) {
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            return;
        }
        let has = |key: &str| schema.get(key).is_some();
        match schema["type"].as_str() {
            Some("array") if !has("maxItems") => unbounded.push(path.to_owned()),
            Some("string") if !has("maxLength") && !has("enum") => unbounded.push(path.to_owned()),
            Some("object") if has("additionalProperties") && !has("maxProperties") => {
                unbounded.push(path.to_owned());
            }
            Some("integer") if !has("maximum") => unbounded.push(path.to_owned()),
            _ => {}
        }
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            walk(&format!("{path}.{name}"), inner, unbounded);
        }
        if has("items") {
            walk(&format!("{path}[]"), &schema["items"], unbounded);
        }
    }
    let mut unbounded = Vec::new();
    walk("spec", &spec_schema()["properties"]["spec"], &mut unbounded);
    assert!(unbounded.is_empty(), "no limit on: {unbounded:?}");
}

#[test]
fn defaults_are_complete_so_that_rules_can_read_them() {
    let spec = &spec_schema()["properties"]["spec"]["properties"];
    assert_eq!(spec["auth"]["default"], serde_json::json!({"type": "Passthrough"}));
    assert_eq!(spec["rollout"]["default"]["stage"], "PoolingOnly");
    assert_eq!(spec["rollout"]["default"]["evaluationPeriod"], "15s");
    assert_eq!(
        spec["rollout"]["default"]["splitSteps"][4],
        serde_json::json!({"percent": 100, "soak": "24h"})
    );
    assert_eq!(
        spec["rollout"]["default"]["gates"]["replicaLag"],
        serde_json::json!({"mode": "Enforce", "max": "10s"})
    );
    assert_eq!(spec["split"]["default"]["maxPercent"], 100);
    assert_eq!(spec["split"]["default"]["catalogInterval"], "15s");
    // A mirror is there or is not: its members have defaults, it has none.
    let mirror = &spec["mirror"];
    assert_eq!(mirror.get("default"), None);
    assert_eq!(mirror["properties"]["target"]["properties"]["port"]["default"], 5432);
    assert_eq!(mirror["properties"]["queueBytes"]["default"], 1_048_576);
    assert_eq!(mirror["properties"]["budgetBytes"]["default"], 67_108_864);
    assert_eq!(mirror["properties"]["transactionTimeout"]["default"], "30s");
    assert_eq!(mirror["properties"]["statements"]["default"], "ReadsOnly");
    assert_eq!(spec["proxy"]["default"]["replicas"], 2);
    assert_eq!(spec["proxy"]["properties"]["drainTimeout"]["default"], "1m");
}

#[test]
fn rules_on_the_mirror_stand_on_the_spec() {
    let schema = spec_schema();
    let rules = &schema["properties"]["spec"]["x-kubernetes-validations"];
    let said: Vec<_> = rules
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| (rule["fieldPath"].as_str().unwrap(), rule["message"].as_str().unwrap()))
        .collect();
    assert_eq!(said[0], (".rollout.stage", "stage Mirror needs spec.mirror"));
    assert_eq!(said[1].0, ".mirror.target");
    assert!(said[1].1.starts_with("the mirror must be another database than the pool's own"), "{said:?}");
}

#[test]
fn autoscalers_find_replicas_and_selector() {
    let version = &definition().unwrap()["spec"]["versions"][0];
    assert_eq!(
        version["subresources"]["scale"],
        serde_json::json!({
            "specReplicasPath": ".spec.proxy.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        })
    );
}

#[test]
fn nothing_is_nullable_and_the_file_is_small_enough_to_apply() {
    let text = definition_yaml().unwrap();
    assert!(!text.contains("nullable"));
    // `kubectl apply` keeps it as JSON in an annotation, and all annotations together may have 262,144 bytes.
    let kept = serde_json::to_string(&definition().unwrap()).unwrap();
    assert!(kept.len() < 131_072, "{} bytes", kept.len());
}

#[test]
fn smallest_pool_reads_with_defaults() {
    let pool: PgRoutingPool = serde_yaml::from_str(
        "
apiVersion: pgrouting.dev/v1alpha1
kind: PgRoutingPool
metadata: {name: orders}
spec:
  backends:
    type: Static
    static: {servers: [{name: pg-0, host: pg-0.pg}]}
",
    )
    .unwrap();
    assert_eq!(pool.spec.proxy.replicas, 2);
    assert_eq!(pool.spec.backends.fixed.unwrap().servers[0].port, 5432);
}

#[test]
fn older_definition_lacks_what_is_new_and_a_newer_one_lacks_nothing() {
    let ours = definition().unwrap();
    assert_eq!(missing_parts(&ours).unwrap(), [""; 0]);
    let mut newer = ours.clone();
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["audit"] =
        serde_json::json!({"type": "object"});
    assert_eq!(missing_parts(&newer).unwrap(), [""; 0]);
    let mut older = ours;
    let spec =
        &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec["pooling"]["properties"].as_object_mut().unwrap().remove("serverIdleTimeout");
    spec["pooling"]["properties"]["mode"]["enum"] = serde_json::json!(["Transaction"]);
    spec["rollout"]["properties"]["stage"]["enum"] = serde_json::json!(["PoolingOnly"]);
    spec.as_object_mut().unwrap().remove("split");
    spec["mirror"]["properties"]["statements"]["enum"] = serde_json::json!(["ReadsOnly"]);
    spec["mirror"]["properties"].as_object_mut().unwrap().remove("parameters");
    let server =
        &mut spec["backends"]["properties"]["static"]["properties"]["servers"]["items"]["properties"];
    server.as_object_mut().unwrap().remove("zone");
    assert_eq!(
        missing_parts(&older).unwrap(),
        [
            "spec.backends.static.servers[].zone",
            "spec.mirror.parameters",
            "spec.mirror.statements=RolledBackWrites",
            "spec.mirror.statements=All",
            "spec.pooling.mode=Session",
            "spec.pooling.serverIdleTimeout",
            "spec.rollout.stage=Split",
            "spec.rollout.stage=Mirror",
            "spec.split"
        ]
    );
    assert_eq!(missing_parts(&serde_json::json!({})).unwrap(), ["version v1alpha1"]);
}

#[test]
fn no_value_is_a_word_that_yaml_reads_as_something_else() {
    // Helm and kubectl read YAML 1.1, where these are booleans or nothing, unless they are quoted.
    const WORDS: [&str; 10] = ["on", "off", "yes", "no", "y", "n", "true", "false", "null", "~"];
    let text = definition_yaml().unwrap();
    let listed = text.lines().filter_map(|line| line.trim_start().strip_prefix("- "));
    let wrong: Vec<_> = listed.filter(|value| WORDS.contains(&&*value.to_ascii_lowercase())).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
