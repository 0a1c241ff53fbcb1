//! The NetworkPolicy of a pool: who may connect to its proxies.
//!
//! Policies only add up, so that one of the user's own, or the chart's, can let in more and never less.

use std::collections::BTreeMap;

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pgrouting_crds::spec::NetworkPolicyMode;

use crate::desired::labels::metadata;
use crate::names::{LABEL_COMPONENT, LABEL_NAME, PoolNames};
use crate::validate::ValidatedPool;

/// The labels of the operator's pods, as the chart sets them.
const OPERATOR: [(&str, &str); 2] = [(LABEL_NAME, "pgrouting-operator"), (LABEL_COMPONENT, "operator")];
/// The label by which Kubernetes itself names namespaces.
const NAMESPACE_LABEL: &str = "kubernetes.io/metadata.name";

/// Clients and metrics from everywhere; the admin API from the operator and from proxies that hand cancel requests on.
#[must_use]
pub fn network_policy(pool: &ValidatedPool, operator_namespace: &str) -> Option<NetworkPolicy> {
    match pool.network_policy {
        NetworkPolicyMode::Disabled => return None,
        NetworkPolicyMode::Enabled => {}
    }
    let names = PoolNames(&pool.name);
    let own = selector(names.selector());
    let operator = NetworkPolicyPeer {
        namespace_selector: Some(selector(BTreeMap::from([(
            NAMESPACE_LABEL.to_owned(),
            operator_namespace.to_owned(),
        )]))),
        pod_selector: Some(selector(
            OPERATOR.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        )),
        ..NetworkPolicyPeer::default()
    };
    let peers = NetworkPolicyPeer { pod_selector: Some(own.clone()), ..NetworkPolicyPeer::default() };
    Some(NetworkPolicy {
        metadata: metadata(pool, names.proxy()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(own),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule {
                    ports: Some(["postgres", "primary", "readonly", "metrics"].map(port).to_vec()),
                    ..NetworkPolicyIngressRule::default()
                },
                NetworkPolicyIngressRule {
                    ports: Some(vec![port("admin")]),
                    from: Some(vec![operator, peers]),
                },
            ]),
            ..NetworkPolicySpec::default()
        }),
    })
}

fn selector(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}

/// A port of the pods by its name there.
fn port(name: &str) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::String(name.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..NetworkPolicyPort::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{SMALL, pool, refs, validated};

    fn policy(spec: &str) -> Option<Value> {
        let pool = pool(spec);
        let policy = network_policy(&validated(&pool, &refs(&pool)), "pgrouting-system");
        policy.map(|policy| serde_json::to_value(policy).unwrap())
    }

    #[test]
    fn pool_that_does_not_ask_has_none() {
        assert_eq!(policy(SMALL), None);
        assert_eq!(policy(&format!("{SMALL}networkPolicy: Disabled")), None);
    }

    #[test]
    fn admin_port_is_for_the_operator_and_the_pools_own_proxies() {
        let policy = policy(&format!("{SMALL}networkPolicy: Enabled")).unwrap();
        assert_eq!(policy["metadata"]["name"], "ledger-proxy");
        assert_eq!(policy["metadata"]["ownerReferences"][0]["uid"], "uid-1");
        let spec = &policy["spec"];
        let own = json!({"matchLabels": {
            "app.kubernetes.io/name": "pg-routing-proxy", "app.kubernetes.io/instance": "ledger",
            "app.kubernetes.io/component": "proxy",
        }});
        assert_eq!((&spec["podSelector"], &spec["policyTypes"]), (&own, &json!(["Ingress"])));
        let operator = json!({
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "pgrouting-system"}},
            "podSelector": {"matchLabels": {
                "app.kubernetes.io/name": "pgrouting-operator", "app.kubernetes.io/component": "operator",
            }},
        });
        let admin: Vec<_> = rules_with(spec, "admin");
        assert_eq!(admin, [&json!([operator, {"podSelector": own}])]);
        for open in ["postgres", "primary", "readonly", "metrics"] {
            assert_eq!(rules_with(spec, open), [&Value::Null], "{open} is open to all");
        }
    }

    #[test]
    fn every_port_that_a_rule_names_is_one_of_the_pods() {
        let policy = policy(&format!("{SMALL}networkPolicy: Enabled")).unwrap();
        let pod = crate::fixtures::built(SMALL).deployment.spec.unwrap().template.spec.unwrap();
        let mut ports: Vec<_> =
            pod.containers[0].ports.iter().flatten().filter_map(|port| port.name.clone()).collect();
        let rules = policy["spec"]["ingress"].as_array().unwrap();
        let named = rules.iter().flat_map(|rule| rule["ports"].as_array().unwrap());
        let mut named: Vec<_> = named.map(|port| port["port"].as_str().unwrap().to_owned()).collect();
        ports.sort();
        named.sort();
        assert_eq!(named, ports);
    }

    /// Who may connect to a port, a rule each.
    fn rules_with<'a>(spec: &'a Value, port: &str) -> Vec<&'a Value> {
        let rules = spec["ingress"].as_array().unwrap().iter();
        let has = |rule: &&Value| rule["ports"].as_array().unwrap().iter().any(|one| one["port"] == port);
        rules.filter(has).map(|rule| &rule["from"]).collect()
    }
}
