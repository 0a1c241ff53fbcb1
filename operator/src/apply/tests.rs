//! A mock API server: what is sent, what is not, and what becomes of errors.

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube::client::Body;
use kube::runtime::reflector;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{SMALL, built, pool, refs, validated};

/// Answers a request: a status and a body.
type Script = dyn Fn(&Method, &str, &Value) -> (u16, Value) + Send + Sync;

/// What was sent: method, path, body.
type Sent = Arc<Mutex<Vec<(String, String, Value)>>>;

fn client(script: Arc<Script>) -> (Client, Sent) {
    let (service, mut handle) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let sent = Sent::default();
    let log = sent.clone();
    tokio::spawn(async move {
        while let Some((request, send)) = handle.next_request().await {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap();
            let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let path = parts.uri.path().to_owned();
            let (status, answer) = script(&parts.method, &path, &body);
            log.lock().unwrap().push((parts.method.to_string(), path, body));
            let answer =
                Response::builder().status(status).body(Body::from(serde_json::to_vec(&answer).unwrap()));
            send.send_response(answer.unwrap());
        }
    });
    (Client::new(service, "acme"), sent)
}

/// Finds nothing, and stores whatever is applied.
fn store_all(method: &Method, _path: &str, body: &Value) -> (u16, Value) {
    if method == Method::PATCH {
        let mut stored = body.clone();
        stored["metadata"]["resourceVersion"] = json!("1");
        stored["metadata"]["uid"] = json!("uid-of-child");
        (200, stored)
    } else {
        failure(404, "NotFound", "not found")
    }
}

fn failure(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let body =
        json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message});
    (code, body)
}

/// Caches that are filled, with these Services.
fn stores(services: Vec<Service>) -> OwnedStores {
    fn filled<K>(objects: Vec<K>) -> Store<K>
    where
        K: Resource<DynamicType = ()> + reflector::Lookup<DynamicType = ()> + Clone + 'static,
    {
        let mut writer = Writer::<K>::new(());
        writer.apply_watcher_event(&Event::Init);
        for object in objects {
            writer.apply_watcher_event(&Event::InitApply(object));
        }
        writer.apply_watcher_event(&Event::InitDone);
        writer.as_reader()
    }
    OwnedStores {
        deployments: filled(Vec::new()),
        services: filled(services),
        service_accounts: filled(Vec::new()),
        disruption_budgets: filled(Vec::new()),
        network_policies: filled(Vec::new()),
    }
}

async fn apply_with(
    script: Arc<Script>,
    stores: &OwnedStores,
    refs: &ResolvedRefs,
    memory: &mut ApplyMemory,
) -> (AppliedObjects, Vec<(String, String, Value)>) {
    let (client, sent) = client(script);
    let pool = pool(SMALL);
    let owner = validated(&pool, &crate::fixtures::refs(&pool)).owner;
    let metrics = Metrics::new().unwrap();
    let applier = Applier::new(&client, stores, &metrics, memory, "acme".into(), owner);
    let applied = Box::pin(applier.apply(built(SMALL), refs, &[])).await;
    let sent = sent.lock().unwrap().clone();
    (applied, sent)
}

fn patched(sent: &[(String, String, Value)]) -> Vec<&str> {
    let patches = sent.iter().filter(|(method, ..)| method == "PATCH");
    patches.map(|(_, path, _)| path.rsplit('/').next().unwrap()).collect()
}

#[tokio::test]
async fn everything_is_applied_and_the_pods_come_last() {
    let pool = pool(SMALL);
    let mut memory = ApplyMemory::default();
    let (applied, sent) =
        apply_with(Arc::new(store_all), &stores(Vec::new()), &refs(&pool), &mut memory).await;
    assert!(applied.faults.is_empty() && applied.document.is_some() && applied.deployment.is_some());
    assert_eq!(
        patched(&sent),
        [
            "ledger-config",
            "ledger-admin",
            "ledger-users",
            "ledger-proxy",
            "ledger",
            "ledger-peers",
            "ledger-proxy",
            "ledger-proxy"
        ]
    );
    assert!(sent.last().unwrap().1.contains("/deployments/"));
    assert!(sent.iter().all(|(_, _, body)| body["metadata"].get("managedFields").is_none()));
}

#[tokio::test]
async fn nothing_is_sent_when_nothing_changed() {
    // What the API server has after a first pass.
    let stored: Arc<Mutex<Vec<Value>>> = Arc::default();
    let kept = stored.clone();
    let script = move |method: &Method, path: &str, body: &Value| {
        let answer = store_all(method, path, body);
        if answer.0 == 200 {
            kept.lock().unwrap().push(answer.1.clone());
        }
        answer
    };
    let pool = pool(SMALL);
    let mut memory = ApplyMemory::default();
    let desired = built(SMALL);
    let (client, sent) = client(Arc::new(script));
    let owner = validated(&pool, &refs(&pool)).owner;
    let metrics = Metrics::new().unwrap();
    let empty = stores(Vec::new());
    let applier = Applier::new(&client, &empty, &metrics, &mut memory, "acme".into(), owner.clone());
    Box::pin(applier.apply(desired.clone(), &refs(&pool), &[])).await;

    let of = |kind: &str, name: &str| -> Value {
        let stored = stored.lock().unwrap();
        let found = stored.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("{kind} {name}")).clone()
    };
    let mut full = stores(
        ["ledger", "ledger-peers"].map(|name| serde_json::from_value(of("Service", name)).unwrap()).to_vec(),
    );
    full.deployments = {
        let mut writer = Writer::<Deployment>::new(());
        let deployment = serde_json::from_value(of("Deployment", "ledger-proxy")).unwrap();
        writer.apply_watcher_event(&Event::Apply(deployment));
        writer.as_reader()
    };
    full.service_accounts = {
        let mut writer = Writer::<ServiceAccount>::new(());
        let account = serde_json::from_value(of("ServiceAccount", "ledger-proxy")).unwrap();
        writer.apply_watcher_event(&Event::Apply(account));
        writer.as_reader()
    };
    full.disruption_budgets = {
        let mut writer = Writer::<PodDisruptionBudget>::new(());
        let budget = serde_json::from_value(of("PodDisruptionBudget", "ledger-proxy")).unwrap();
        writer.apply_watcher_event(&Event::Apply(budget));
        writer.as_reader()
    };
    let mut now = refs(&pool);
    now.config_map = serde_json::from_value(of("ConfigMap", "ledger-config")).unwrap();
    now.admin = serde_json::from_value(of("Secret", "ledger-admin")).unwrap();
    now.users = serde_json::from_value(of("Secret", "ledger-users")).unwrap();
    sent.lock().unwrap().clear();
    let applier = Applier::new(&client, &full, &metrics, &mut memory, "acme".into(), owner);
    let applied = Box::pin(applier.apply(desired, &now, &[])).await;
    assert!(applied.faults.is_empty(), "{:?}", applied.faults);
    assert!(sent.lock().unwrap().is_empty(), "{:?}", sent.lock().unwrap());
}

#[tokio::test]
async fn object_of_someone_else_is_never_written_and_the_rest_is() {
    let script = |method: &Method, path: &str, body: &Value| {
        if method == Method::GET && path.ends_with("/services/ledger") {
            (200, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ledger", "uid": "x"}}))
        } else {
            store_all(method, path, body)
        }
    };
    let pool = pool(SMALL);
    let mut memory = ApplyMemory::default();
    let (applied, sent) = apply_with(Arc::new(script), &stores(Vec::new()), &refs(&pool), &mut memory).await;
    assert!(matches!(&applied.faults[..], [ApplyFault::NameConflict { kind, .. }] if kind == "Service"));
    assert!(applied.faults[0].to_string().contains("rename the pool"));
    assert!(!applied.faults[0].may_pass());
    assert!(!patched(&sent).contains(&"ledger"));
    assert_eq!(patched(&sent).len(), 7);
}

#[tokio::test]
async fn errors_are_told_apart_by_what_helps() {
    for (code, reason, may_pass) in [
        (403, "Forbidden", false),
        (422, "Invalid", false),
        (409, "Conflict", true),
        (500, "InternalError", true),
    ] {
        let script = move |method: &Method, path: &str, body: &Value| {
            if method == Method::PATCH && path.ends_with("/deployments/ledger-proxy") {
                failure(code, reason, "because")
            } else {
                store_all(method, path, body)
            }
        };
        let pool = pool(SMALL);
        let mut memory = ApplyMemory::default();
        let (applied, _) = apply_with(Arc::new(script), &stores(Vec::new()), &refs(&pool), &mut memory).await;
        assert_eq!(applied.faults.len(), 1, "{code}");
        assert_eq!(applied.faults[0].may_pass(), may_pass, "{code}");
        assert!(applied.faults[0].to_string().contains("because"), "{code}");
        // The document is stored all the same, and may be pushed.
        assert!(applied.document.is_some());
    }
}

#[tokio::test]
async fn entry_of_a_hand_that_stands_in_the_way_is_replaced() {
    let refused = Arc::new(Mutex::new(true));
    let state = refused.clone();
    let script = move |method: &Method, path: &str, body: &Value| {
        let mut refused = state.lock().unwrap();
        if method != Method::PATCH || !path.ends_with("/services/ledger") {
            return store_all(method, path, body);
        }
        if *refused {
            *refused = false;
            return failure(422, "Invalid", "spec.ports[1].name: Duplicate value");
        }
        store_all(method, path, body)
    };
    let mut service = built(SMALL).services.remove(0);
    service.metadata.uid = Some("uid-of-child".into());
    let pool = pool(SMALL);
    let mut memory = ApplyMemory::default();
    let stores = stores(vec![service]);
    let (applied, sent) = apply_with(Arc::new(script), &stores, &refs(&pool), &mut memory).await;
    assert!(applied.faults.is_empty(), "{:?}", applied.faults);
    assert_eq!(patched(&sent).iter().filter(|name| **name == "ledger").count(), 3);
    assert!(!*refused.lock().unwrap());
}

#[tokio::test]
async fn document_that_is_not_stored_is_not_pushed() {
    let script = |method: &Method, path: &str, body: &Value| {
        if method == Method::PATCH && path.contains("/configmaps/") {
            failure(500, "InternalError", "etcd is away")
        } else {
            store_all(method, path, body)
        }
    };
    let pool = pool(SMALL);
    let mut memory = ApplyMemory::default();
    let (applied, _) = apply_with(Arc::new(script), &stores(Vec::new()), &refs(&pool), &mut memory).await;
    assert!(applied.document.is_none());
}

#[tokio::test]
async fn own_orphan_is_deleted_and_a_foreign_one_is_not() {
    let service = |name: &str, owner: &str| -> Service {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "acme", "uid": format!("uid-{name}"),
                "ownerReferences": [{
                    "apiVersion": "pgrouting.dev/v1alpha1", "kind": "PgRoutingPool", "name": "ledger",
                    "uid": owner, "controller": true,
                }],
            },
        }))
        .unwrap()
    };
    let stores = stores(vec![service("ledger-primary", "uid-1"), service("other-primary", "uid-2")]);
    let script = |method: &Method, path: &str, body: &Value| {
        if method == Method::DELETE {
            (200, json!({"kind": "Status", "status": "Success", "code": 200}))
        } else {
            store_all(method, path, body)
        }
    };
    let pool = pool(SMALL);
    let mut memory = ApplyMemory::default();
    let (_, sent) = apply_with(Arc::new(script), &stores, &refs(&pool), &mut memory).await;
    let deleted: Vec<_> = sent.iter().filter(|(method, ..)| method == "DELETE").collect();
    assert_eq!(deleted.len(), 1);
    assert!(deleted[0].1.ends_with("/ledger-primary"));
    assert_eq!(deleted[0].2["preconditions"]["uid"], "uid-ledger-primary");
}

#[tokio::test]
async fn changed_secret_makes_kubelet_look_at_the_pods_again() {
    let (client, sent) = client(Arc::new(store_all));
    let pool = pool(SMALL);
    let desired = built(SMALL);
    let mut refs = refs(&pool);
    let mut old = desired.users.clone();
    old.data.as_mut().unwrap().values_mut().for_each(|value| value.0.push(b'x'));
    refs.users = Some(old);
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "ledger-proxy-x"}})).unwrap();
    let (stores, metrics, mut memory) = (stores(Vec::new()), Metrics::new().unwrap(), ApplyMemory::default());
    let owner = validated(&pool, &refs).owner;
    let applier = Applier::new(&client, &stores, &metrics, &mut memory, "acme".into(), owner);
    Box::pin(applier.apply(desired, &refs, &[Arc::new(pod)])).await;
    let sent = sent.lock().unwrap();
    let touched: Vec<_> = sent.iter().filter(|(_, path, _)| path.contains("/pods/")).collect();
    assert_eq!(touched.len(), 1);
    assert!(touched[0].2["metadata"]["annotations"][ANNOTATION_MOUNTED_HASH].is_string());
    assert!(!touched[0].2.to_string().contains("app"), "no content of a Secret is in it");
}
