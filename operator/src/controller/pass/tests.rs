//! Every field that is edited after a pool was made takes effect.

use std::collections::BTreeSet;

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::*;
use crate::certificates::AdminCertificates;
use crate::desired::network_policy::network_policy;
use crate::fixtures::{IMAGE, at, at_target, refs};
use crate::position::Ladder;
use crate::resolve::files::referenced_files;
use crate::resolve::referenced_secrets;

/// A pool that has something of everything.
fn everything() -> Value {
    let gates = json!({"external": [{"name": "cpu", "query": "up", "max": "1"}]});
    json!({
        "backends": {
            "type": "Static",
            "static": {"servers": [
                {"name": "pg-0", "host": "pg-0.pg", "zone": "a"}, {"name": "pg-1", "host": "pg-1.pg"},
            ]},
            "probe": {"credentialsSecret": {"name": "monitor"}},
        },
        "auth": {"type": "UserList", "users": [{"name": "app"}]},
        "tls": {
            "client": "Require", "certificateSecret": "cert", "clientCa": {"kind": "Secret", "name": "client-ca"},
            "server": "VerifyFull", "serverCa": {"kind": "Secret", "name": "server-ca"},
            "serverClientCertificateSecret": "client-cert",
        },
        "split": {"maxStaleness": "1s", "consistency": "Bounded"},
        "mirror": {
            "target": {"host": "m", "database": "d"}, "credentialsSecret": {"name": "mirror"},
            "tls": {
                "server": "VerifyCa", "serverCa": {"kind": "Secret", "name": "mirror-ca"},
                "serverClientCertificateSecret": "mirror-cert",
            },
        },
        "rollout": {"stage": "Mirror", "gates": gates, "wave": {"group": "g", "order": 1},
                    "splitSteps": [{"percent": 10, "soak": "1m"}], "mirrorSteps": [{"percent": 10, "soak": "1m"}]},
        "service": {"type": "LoadBalancer"},
    })
}

/// The same with other ways to be told of servers and users.
fn with(part: &str) -> Value {
    let mut spec = everything();
    match part {
        "services" => {
            spec["backends"] = json!({"type": "Services", "services": {
                "primary": {"name": "rw"}, "replicas": {"name": "ro"}}});
        }
        "dns" => {
            spec["backends"] = json!({"type": "Dns", "dns": {
                "primary": {"host": "rw.pg"}, "replicas": {"host": "ro.pg"}}});
        }
        "query" => {
            spec["auth"] = json!({"type": "Query", "query": {"credentialsSecret": {"name": "asker"}}});
        }
        _ => {}
    }
    spec
}

/// Fields that another value of is not simply the next one of the same kind.
fn other_value(path: &str, schema: &Value) -> Value {
    match path {
        "auth.type" => json!("Passthrough"),
        "auth.query.sql" => json!("SELECT $1, 'x'"),
        "backends.type" => json!("Services"),
        "rollout.stage" => json!("PoolingOnly"),
        "rollout.mode" => json!("Immediate"),
        "split.consistency" => json!("Eventual"),
        "tls.client" => json!("Allow"),
        "tls.server" | "mirror.tls.server" => json!("Require"),
        "service.externalTrafficPolicy" => json!("Local"),
        "service.endpoints" => json!(["Primary"]),
        "service.annotations" => json!({"a": "b"}),
        "pooling.parameters" | "mirror.parameters" => json!({"work_mem": "8MB"}),
        "proxy.podTemplate" => json!({"spec": {"priorityClassName": "high"}}),
        "proxy.resources" => json!({"limits": {"cpu": "1"}}),
        // Below the only step.
        "split.maxPercent" | "mirror.maxPercent" => json!(5),
        // Divided by two proxies.
        "pooling.maxServerConnections" | "mirror.maxConnections" => json!(8),
        "rollout.gates.external[].max" | "rollout.gates.external[].min" => json!("0.5"),
        _ => usual_other_value(path, schema),
    }
}

fn usual_other_value(path: &str, schema: &Value) -> Value {
    if let Some(words) = schema["enum"].as_array() {
        let usual = &schema["default"];
        return words.iter().find(|word| *word != usual).unwrap().clone();
    }
    match schema["type"].as_str() {
        Some("integer") => {
            let usual = schema["default"].as_i64().unwrap_or(1);
            json!(if schema["maximum"].as_i64().is_some_and(|most| usual >= most) {
                usual - 1
            } else {
                usual + 1
            })
        }
        Some("boolean") => json!(!schema["default"].as_bool().unwrap()),
        Some("array") => json!(["other"]),
        Some("string") if schema["pattern"].as_str().is_some_and(|pattern| pattern.contains("ms")) => {
            json!("3s")
        }
        Some("string") => json!("other"),
        kind => panic!("{path}: say what other value of {kind:?} there is"),
    }
}

/// What is read by each decision of the rollout, and is neither in an object nor in the document: by which test.
const READ_BY_THE_ROLLOUT: [(&str, &str); 9] = [
    ("rollout.approvedStep", "rollout::tests"),
    ("rollout.evaluationPeriod", "rollout::lookout::tests"),
    ("rollout.failureThreshold", "rollout::tests"),
    ("rollout.minSamples", "rollout::lookout::tests"),
    ("rollout.onFailure", "rollout::tests"),
    ("rollout.progressDeadline", "status::tests"),
    ("rollout.rollbackTo", "rollout::tests"),
    ("rollout.wave.", "rollout::turn"),
    ("rollout.splitSteps[].soak", "rollout::tests"),
];

/// All that a pool comes to, in one value: what it points at, its objects, its document, its place in the rollout.
fn effect(spec: &Value) -> Value {
    let pool: PgRoutingPool = serde_json::from_value(json!({
        "apiVersion": "pgrouting.dev/v1alpha1", "kind": "PgRoutingPool",
        "metadata": {"name": "ledger", "namespace": "acme", "uid": "uid-1", "generation": 1},
        "spec": spec,
        "status": {"proxies": {"summary": "2/2", "image": "registry.test/proxy:0"}},
    }))
    .unwrap_or_else(|error| panic!("{error}: {spec}"));
    let mut refs = refs(&pool);
    let certificates = CERTIFICATES.with(Clone::clone);
    for file in referenced_files(&pool.spec).into_iter().flatten() {
        let content = match file.key.as_str() {
            "tls.crt" => &certificates.client.certificate,
            "tls.key" => &certificates.client.key,
            _ => &certificates.ca.certificate,
        };
        refs.files.insert(file, Ok(content.clone().into_bytes()));
    }
    refs.endpoints.servers = vec![crate::resolve::EndpointServer {
        name: "e".into(),
        address: "10.0.0.1".into(),
        port: 5432,
        zone: None,
        is_ready: true,
    }];
    let images = plan(&pool, None, || Some(Vec::new()), IMAGE);
    let points_at = format!(
        "{:?} {:?} {:?} {:?}",
        referenced_secrets(&pool),
        referenced_files(&pool.spec),
        pool.spec.backends.services,
        pool.spec.backends.dns
    );
    let built = match build(&pool, &refs, &at_target(&pool), &images.image).unwrap() {
        Ok((validated, objects)) => {
            // A new kind of object is to be named here too. The admin API's certificates are made of no field.
            let DesiredObjects {
                document,
                config_map: _,
                admin: _,
                users,
                service_account,
                services,
                disruption_budget,
                network_policy: _,
                deployment,
            } = objects;
            let network_policy = network_policy(&validated, "pgrouting-system");
            json!([
                document.config,
                users,
                service_account,
                services,
                disruption_budget,
                network_policy,
                deployment,
            ])
        }
        Err(verdict) => json!(format!("{verdict:?}")),
    };
    let entered = enter(None, None, &pool.spec, at(0));
    json!({
        "pointsAt": points_at,
        "built": built,
        "ladder": format!("{:?}", Ladder::of(&pool.spec)),
        "entered": entered,
        "images": format!("{images:?}"),
        "reconciliation": pool.spec.reconciliation,
    })
}

thread_local! {
    static CERTIFICATES: AdminCertificates = AdminCertificates::keep_or_make(None, at(0)).unwrap();
}

/// The fields of the definition, by path; `[]` is each of a list.
fn fields() -> Vec<(String, Value)> {
    fn walk(path: &str, schema: &Value, fields: &mut Vec<(String, Value)>) {
        let dotted = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        if let Some(properties) = schema["properties"].as_object() {
            for (name, inner) in properties {
                walk(&dotted(name), inner, fields);
            }
        } else if schema["items"]["properties"].is_object() {
            walk(&format!("{path}[]"), &schema["items"], fields);
        } else {
            fields.push((path.to_owned(), schema.clone()));
        }
    }
    let definition = serde_json::to_value(PgRoutingPool::crd()).unwrap();
    let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut fields = Vec::new();
    walk("", schema, &mut fields);
    fields
}

/// Sets a field, by its path; of a list, that of the first.
fn set(spec: &mut Value, path: &str, value: Value) {
    let mut at = spec;
    let parts: Vec<_> = path.split('.').collect();
    for (index, part) in parts.iter().enumerate() {
        let (name, is_list) = part.strip_suffix("[]").map_or((*part, false), |name| (name, true));
        if at.get(name).is_none() {
            at[name] = if is_list { json!([{}]) } else { json!({}) };
        }
        at = &mut at[name];
        if is_list {
            at = &mut at[0];
        }
        if index + 1 == parts.len() {
            *at = value;
            return;
        }
    }
}

#[test]
fn every_field_that_is_edited_after_creation_takes_effect() {
    let mut dead = Vec::new();
    let mut read_by_the_rollout = BTreeSet::new();
    let fields = fields();
    assert!(fields.len() > 100, "{} fields", fields.len());
    for (path, schema) in &fields {
        if let Some((prefix, _)) = READ_BY_THE_ROLLOUT.iter().find(|(prefix, _)| path.starts_with(prefix)) {
            read_by_the_rollout.insert(*prefix);
            continue;
        }
        let base = match path.as_str() {
            path if path.starts_with("backends.services") => with("services"),
            path if path.starts_with("backends.dns") => with("dns"),
            path if path.starts_with("auth.query") => with("query"),
            _ => everything(),
        };
        let mut edited = base.clone();
        set(&mut edited, path, other_value(path, schema));
        if effect(&base) == effect(&edited) {
            dead.push(path.clone());
        }
    }
    assert!(dead.is_empty(), "an edit of these changes nothing: {dead:#?}");
    assert_eq!(read_by_the_rollout.len(), READ_BY_THE_ROLLOUT.len(), "the list names fields that there are");
    // The test would see a field that has no effect.
    assert_eq!(effect(&everything()), effect(&everything()));
}
