//! The Services of a pool, for clients and for peers, and the ServiceAccount of its pods.

use k8s_openapi::api::core::v1::{Service, ServiceAccount, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pgrouting_crds::spec::Endpoint;

use crate::desired::labels::metadata;
use crate::names::{ADMIN_PORT, PoolNames};
use crate::validate::ValidatedPool;

/// The routed Service, one for each endpoint that the pool asks for, and the one for peers.
#[must_use]
pub fn services(pool: &ValidatedPool) -> Vec<Service> {
    let names = PoolNames(&pool.name);
    let mut services = vec![service(pool, names.service(), "postgres")];
    if pool.service.endpoints.contains(&Endpoint::Primary) {
        services.push(service(pool, names.primary_service(), "primary"));
    }
    if pool.service.endpoints.contains(&Endpoint::ReadOnly) {
        services.push(service(pool, names.read_only_service(), "readonly"));
    }
    services.push(peers_service(pool));
    services
}

/// The name by which proxies find each other: an address for each pod, one that drains or is not ready yet included,
/// since it has sessions that can be cancelled. What the pool says of Services is for those of clients.
fn peers_service(pool: &ValidatedPool) -> Service {
    let names = PoolNames(&pool.name);
    Service {
        metadata: metadata(pool, names.peers_service()),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(names.selector()),
            ports: Some(vec![ServicePort {
                name: Some("admin".to_owned()),
                port: i32::from(ADMIN_PORT),
                target_port: Some(IntOrString::String("admin".to_owned())),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn service(pool: &ValidatedPool, name: String, target_port: &str) -> Service {
    let mut metadata = metadata(pool, name);
    if !pool.service.annotations.is_empty() {
        metadata.annotations = Some(pool.service.annotations.clone());
    }
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(pool.service.kind.as_str().to_owned()),
            selector: Some(PoolNames(&pool.name).selector()),
            ports: Some(vec![ServicePort {
                name: Some("postgres".to_owned()),
                port: i32::from(pool.service.port),
                target_port: Some(IntOrString::String(target_port.to_owned())),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            load_balancer_class: pool.service.load_balancer_class.clone(),
            external_traffic_policy: text(pool.service.external_traffic_policy.map(|policy| policy.as_str())),
            traffic_distribution: text(pool.service.traffic_distribution.map(|wanted| wanted.as_str())),
            ip_family_policy: text(pool.service.ip_family_policy.map(|policy| policy.as_str())),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// What the pool leaves open is the API server's to fill in, and is never written here.
fn text(word: Option<&'static str>) -> Option<String> {
    word.map(str::to_owned)
}

/// The pods' ServiceAccount, without a token; none when the pool names its own.
#[must_use]
pub fn service_account(pool: &ValidatedPool) -> Option<ServiceAccount> {
    pool.proxy.service_account.is_none().then(|| ServiceAccount {
        metadata: metadata(pool, PoolNames(&pool.name).proxy()),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    })
}
