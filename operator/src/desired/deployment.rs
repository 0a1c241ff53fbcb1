//! The Deployment of a pool's proxies.
//!
//! Nothing in the pod template comes from the servers, limits, users or settings of a pool: a change of these must
//! leave it byte for byte as it is, or it would restart every proxy.

use std::time::Duration;

use k8s_openapi::DeepMerge as _;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction,
    KeyToPath, LocalObjectReference, ObjectFieldSelector, PodSecurityContext, PodSpec, PodTemplateSpec,
    Probe, SeccompProfile, SecretVolumeSource, SecurityContext, TopologySpreadConstraint, Volume,
    VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::desired::config_map::ADMIN_MOUNT;
use crate::desired::labels::{labels, metadata};
use crate::desired::secret::PROXY_KEYS;
use crate::names::{ADMIN_PORT, CONFIG_KEY, PoolNames};
use crate::validate::{USERS_MOUNT, ValidatedPool};

const CONTAINER: &str = "proxy";
const CONFIG_MOUNT: &str = "/etc/pgrouting/config";
const USER_ID: i64 = 65532;
/// What a pod gets beyond the drain: to stop listening before and to close down after.
const GRACE_MARGIN: Duration = Duration::from_secs(10);

/// The Deployment: never fewer pods than asked for while it rolls.
#[must_use]
pub fn deployment(pool: &ValidatedPool) -> Deployment {
    let names = PoolNames(&pool.name);
    Deployment {
        metadata: metadata(pool, names.proxy()),
        spec: Some(DeploymentSpec {
            replicas: Some(pool.proxy.replicas),
            selector: LabelSelector { match_labels: Some(names.selector()), ..LabelSelector::default() },
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_unavailable: Some(IntOrString::Int(0)),
                    max_surge: Some(IntOrString::String("25%".to_owned())),
                }),
            }),
            template: pod_template(pool),
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

/// The user's template with ours laid over it: where both say something, ours counts.
fn pod_template(pool: &ValidatedPool) -> PodTemplateSpec {
    let mut template = pool.proxy.pod_template.clone();
    let has_spread = template.spec.as_ref().is_some_and(|spec| spec.topology_spread_constraints.is_some());
    template.merge_from(PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels(pool)), ..ObjectMeta::default() }),
        spec: Some(pod_spec(pool, has_spread)),
    });
    template
}

fn pod_spec(pool: &ValidatedPool, has_spread: bool) -> PodSpec {
    let names = PoolNames(&pool.name);
    let pull_secrets: Vec<_> = pool
        .proxy
        .image_pull_secrets
        .iter()
        .map(|name| LocalObjectReference { name: name.clone() })
        .collect();
    let grace = pool.proxy.drain_timeout.saturating_add(GRACE_MARGIN);
    PodSpec {
        service_account_name: Some(pool.proxy.service_account.clone().unwrap_or_else(|| names.proxy())),
        automount_service_account_token: Some(false),
        image_pull_secrets: Some(pull_secrets).filter(|secrets| !secrets.is_empty()),
        // A part of a second counts as a whole one.
        termination_grace_period_seconds: i64::try_from(grace.as_millis().div_ceil(1000)).ok(),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER_ID),
            run_as_group: Some(USER_ID),
            fs_group: Some(USER_ID),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        topology_spread_constraints: (!has_spread).then(|| {
            ["kubernetes.io/hostname", "topology.kubernetes.io/zone"].map(|key| spread(pool, key)).to_vec()
        }),
        containers: vec![container(pool)],
        volumes: Some(volumes(pool)),
        ..PodSpec::default()
    }
}

/// Spreads when it can and never keeps a pod from starting.
fn spread(pool: &ValidatedPool, topology_key: &str) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        max_skew: 1,
        topology_key: topology_key.to_owned(),
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(LabelSelector {
            match_labels: Some(PoolNames(&pool.name).selector()),
            ..LabelSelector::default()
        }),
        ..TopologySpreadConstraint::default()
    }
}

fn container(pool: &ValidatedPool) -> Container {
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    Container {
        name: CONTAINER.to_owned(),
        image: Some(pool.proxy.image.clone()),
        image_pull_policy: pool.proxy.image_pull_policy.map(|policy| policy.as_str().to_owned()),
        args: Some(vec!["--config".to_owned(), format!("{CONFIG_MOUNT}/{CONFIG_KEY}")]),
        // Kubernetes copies the node's zone to its pods since 1.35; before that somebody else may.
        env: Some(vec![EnvVar {
            name: "PGROUTING_ZONE".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: Some("v1".to_owned()),
                    field_path: "metadata.labels['topology.kubernetes.io/zone']".to_owned(),
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }]),
        ports: Some(vec![
            port("postgres", 5432),
            port("primary", 5433),
            port("readonly", 5434),
            port("admin", ADMIN_PORT),
            port("metrics", 9127),
        ]),
        // A pod that has just started is ready within a second of reaching a primary.
        readiness_probe: Some(probe("/readyz", 1, 3)),
        liveness_probe: Some(probe("/healthz", 5, 6)),
        resources: pool.proxy.resources.clone(),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![
            mount("config", CONFIG_MOUNT),
            mount("admin", ADMIN_MOUNT),
            mount("users", USERS_MOUNT),
        ]),
        ..Container::default()
    }
}

fn probe(path: &str, period_secs: i32, failures_max: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("metrics".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_secs),
        timeout_seconds: Some(2),
        failure_threshold: Some(failures_max),
        ..Probe::default()
    }
}

/// Whole directories, since a mount by subPath would never change.
fn volumes(pool: &ValidatedPool) -> Vec<Volume> {
    let names = PoolNames(&pool.name);
    let items =
        PROXY_KEYS.map(|key| KeyToPath { key: key.to_owned(), path: key.to_owned(), ..KeyToPath::default() });
    vec![
        Volume {
            name: "config".to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: names.config_map(),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            name: "admin".to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(names.admin_secret()),
                items: Some(items.to_vec()),
                default_mode: Some(0o440),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        },
        Volume {
            name: "users".to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(names.users_secret()),
                default_mode: Some(0o440),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        },
    ]
}
