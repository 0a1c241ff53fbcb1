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
    assert_eq!(spec["rollout"]["default"], serde_json::json!({"stage": "PoolingOnly"}));
    assert_eq!(spec["split"]["default"]["maxPercent"], 100);
    assert_eq!(spec["split"]["default"]["catalogInterval"], "15s");
    assert_eq!(spec["proxy"]["default"]["replicas"], 2);
    assert_eq!(spec["proxy"]["properties"]["drainTimeout"]["default"], "1m");
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
    assert!(text.len() < 100_000, "{} bytes", text.len());
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
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["mirror"] =
        serde_json::json!({"type": "object"});
    assert_eq!(missing_parts(&newer).unwrap(), [""; 0]);
    let mut older = ours;
    let spec =
        &mut older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    spec["pooling"]["properties"].as_object_mut().unwrap().remove("serverIdleTimeout");
    spec["pooling"]["properties"]["mode"]["enum"] = serde_json::json!(["Transaction"]);
    spec["rollout"]["properties"]["stage"]["enum"] = serde_json::json!(["PoolingOnly"]);
    spec.as_object_mut().unwrap().remove("split");
    let server =
        &mut spec["backends"]["properties"]["static"]["properties"]["servers"]["items"]["properties"];
    server.as_object_mut().unwrap().remove("zone");
    assert_eq!(
        missing_parts(&older).unwrap(),
        [
            "spec.backends.static.servers[].zone",
            "spec.pooling.mode=Session",
            "spec.pooling.serverIdleTimeout",
            "spec.rollout.stage=Split",
            "spec.split"
        ]
    );
    assert_eq!(missing_parts(&serde_json::json!({})).unwrap(), ["version v1alpha1"]);
}
