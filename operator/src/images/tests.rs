//! Whose turn it is to take a new image: one pool at a time, in order, and nobody passes one that is stuck.

use serde_json::json;

use super::*;

const OLD: &str = "registry.test/proxy:1";
const NEW: &str = "registry.test/proxy:2";

/// A pool with this spec for its pods, the image that it runs, and a condition that is not as it should be.
fn pool(
    name: &str,
    proxy: serde_json::Value,
    image: Option<&str>,
    condition: Option<(&str, &str, &str)>,
) -> PgRoutingPool {
    let conditions: Vec<_> = condition
        .iter()
        .map(|(kind, status, reason)| {
            json!({"type": kind, "status": status, "reason": reason, "message": "m",
                   "lastTransitionTime": "2026-11-30T00:00:00Z"})
        })
        .collect();
    let proxies = image.map(|image| json!({"summary": "2/2", "image": image}));
    let mut value = json!({
        "apiVersion": "pgrouting.dev/v1alpha1", "kind": "PgRoutingPool",
        "metadata": {"name": name, "namespace": "acme"},
        "spec": {"backends": {"type": "Static", "static": {"servers": [{"name": "a", "host": "a"}]}}, "proxy": proxy},
        "status": {"conditions": conditions},
    });
    if let Some(proxies) = proxies {
        value["status"]["proxies"] = proxies;
    }
    serde_json::from_value(value).unwrap()
}

fn automatic(name: &str, image: &str) -> PgRoutingPool {
    pool(name, json!({}), Some(image), None)
}

fn updating(name: &str) -> PgRoutingPool {
    pool(name, json!({}), Some(NEW), Some((IMAGE_CURRENT, "False", IMAGE_UPDATING)))
}

/// The image of each pool and what is said of it, by the default `NEW`.
fn plans(pools: &[PgRoutingPool]) -> Vec<(String, Standing)> {
    let members: Vec<_> = pools.iter().map(Member::of).collect();
    pools
        .iter()
        .map(|pool| plan(pool, None, || Some(members.clone()), NEW))
        .map(|plan| (plan.image, plan.standing))
        .collect()
}

fn waits(cause: Wait) -> (String, Standing) {
    (OLD.to_owned(), Standing::Waiting { newer: NEW.to_owned(), cause })
}

#[test]
fn first_in_order_begins_and_all_others_wait_for_it_by_name() {
    let pools = [automatic("c", OLD), automatic("a", OLD), automatic("b", OLD)];
    let others = vec!["acme/b".to_owned(), "acme/c".to_owned()];
    assert_eq!(
        plans(&pools),
        [
            waits(Wait::Before("acme/a".into())),
            (NEW.to_owned(), Standing::Updating { others }),
            waits(Wait::Before("acme/a".into())),
        ]
    );
}

#[test]
fn pool_that_is_being_updated_holds_all_others_until_it_is_done() {
    let held = plans(&[automatic("a", OLD), updating("b"), automatic("c", OLD)]);
    let others = vec!["acme/a".to_owned(), "acme/c".to_owned()];
    assert_eq!(
        held,
        [
            waits(Wait::Updating { pool: "acme/b".into(), is_next: true }),
            (NEW.to_owned(), Standing::Updating { others }),
            waits(Wait::Updating { pool: "acme/b".into(), is_next: false }),
        ]
    );
    let done = plans(&[automatic("a", NEW), automatic("b", NEW), automatic("c", OLD)]);
    assert_eq!(done[2], (NEW.to_owned(), Standing::Updating { others: Vec::new() }));
    assert_eq!(done[0], (NEW.to_owned(), Standing::Current));
}

#[test]
fn every_order_of_passes_updates_each_pool_once_and_never_two_at_a_time() {
    // Each round, every pool has its pass; the one that has begun is done in the round after.
    let mut pools: Vec<_> = ["d", "b", "a", "c"].map(|name| automatic(name, OLD)).to_vec();
    let mut begun = Vec::new();
    for _ in 0..20 {
        for index in 0..pools.len() {
            let members: Vec<_> = pools.iter().map(Member::of).collect();
            let was_updating = members[index].is_updating;
            let plan = plan(&pools[index], None, || Some(members.clone()), NEW);
            let name = pools[index].name_any();
            if matches!(plan.standing, Standing::Updating { .. }) && !was_updating {
                begun.push(name.clone());
                pools[index] = updating(&name);
            } else if was_updating {
                pools[index] = automatic(&name, NEW);
            }
            assert!(pools.iter().filter(|pool| Member::of(pool).is_updating).count() <= 1);
        }
    }
    assert_eq!(begun, ["a", "b", "c", "d"]);
}

#[test]
fn manual_pool_and_one_that_names_its_image_stay_and_hold_nobody() {
    let manual = pool("a", json!({"imageUpdates": "Manual"}), Some(OLD), None);
    let named = pool("b", json!({"image": "mine:7"}), Some("mine:7"), None);
    let plans = plans(&[manual, named, automatic("c", OLD)]);
    assert_eq!(plans[0], (OLD.to_owned(), Standing::Kept { newer: NEW.to_owned() }));
    assert_eq!(plans[1], ("mine:7".to_owned(), Standing::Named));
    assert_eq!(plans[2], (NEW.to_owned(), Standing::Updating { others: Vec::new() }));
}

#[test]
fn pool_that_cannot_be_updated_is_passed_over_and_says_so() {
    for reason in ["InvalidSpec", "NameConflict", "Forbidden"] {
        let blocked = pool("a", json!({}), Some(OLD), Some(("Stalled", "True", reason)));
        let plans = plans(&[blocked, automatic("b", OLD)]);
        assert_eq!(plans[0], waits(Wait::OwnFault), "{reason}");
        assert_eq!(plans[1].0, NEW, "{reason}");
    }
    // A rollout that waits for a person keeps no image.
    let held = pool("a", json!({}), Some(OLD), Some(("Stalled", "True", "GateFailed")));
    assert_eq!(plans(&[held, automatic("b", OLD)])[0].0, NEW);
}

#[test]
fn new_pool_has_the_default_and_one_without_a_status_what_its_deployment_runs() {
    let new = pool("a", json!({}), None, None);
    let members = || Some(vec![Member::of(&new), Member::of(&automatic("b", OLD))]);
    assert_eq!(plan(&new, None, members, NEW).standing, Standing::Current);
    assert_eq!(plan(&new, Some(OLD), || None, NEW).image, OLD, "nothing begins before all pools are known");
    let kept = pool("a", json!({"imageUpdates": "Manual"}), None, None);
    assert_eq!(plan(&kept, Some(OLD), members, NEW).image, OLD);
}

#[test]
fn deployment_is_rolled_out_when_every_pod_is_new_and_ready_and_no_other_is_left() {
    let deployment = |status: serde_json::Value| -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"generation": 4},
            "spec": {"replicas": 2, "selector": {}, "template": {"spec": {"containers": [{"name": "proxy", "image": NEW}]}}},
            "status": status,
        }))
        .unwrap()
    };
    let full = json!({"observedGeneration": 4, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2});
    assert!(is_rolled_out(&deployment(full.clone())));
    assert_eq!(image_of(&deployment(full.clone())), Some(NEW));
    for (field, value) in
        [("observedGeneration", 3), ("replicas", 3), ("updatedReplicas", 1), ("readyReplicas", 1)]
    {
        let mut status = full.clone();
        status[field] = json!(value);
        assert!(!is_rolled_out(&deployment(status)), "{field}");
    }
    let none: Deployment = serde_json::from_value(json!({
        "metadata": {"generation": 1}, "spec": {"replicas": 0, "selector": {}, "template": {}},
        "status": {"observedGeneration": 1},
    }))
    .unwrap();
    assert!(is_rolled_out(&none), "no pod is wanted and none is there");
}
