//! What a user writes: the spec of a PgRoutingPool.
//!
//! A field or a value is here only once the operator acts on it. Unions are a `type` with one member for each value
//! that needs one. Every default that stands here is part of the API for ever: the API server fills it in on reading,
//! so an image or a behaviour that may change is never given one.

#![expect(unreachable_pub, reason = "KubeSchema repeats each struct inside a function")]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::duration::PoolDuration;
use crate::spec::console::Console;
use crate::spec::credentials::CredentialsSecret;
use crate::spec::mirror::Mirror;
use crate::spec::pooling::Pooling;
use crate::spec::proxy::Proxy;
use crate::spec::rollout::Rollout;
use crate::spec::split::Split;
use crate::spec::tls::Tls;
use crate::status::PgRoutingPoolStatus;

pub mod console;
pub mod credentials;
pub mod gates;
pub mod mirror;
pub mod pooling;
pub mod proxy;
pub mod rollout;
pub mod split;
pub mod tls;

/// A fleet of PostgreSQL routing proxies in front of one primary and its replicas.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[kube(
    group = "pgrouting.dev",
    version = "v1alpha1",
    kind = "PgRoutingPool",
    plural = "pgroutingpools",
    singular = "pgroutingpool",
    shortname = "pgrp",
    category = "all",
    category = "postgres",
    namespaced,
    status = "PgRoutingPoolStatus",
    derive = "PartialEq",
    doc = "A fleet of PostgreSQL routing proxies in front of one primary and its replicas.",
    validation = Rule::new("size(self.metadata.name) <= 46").message("name must be at most 46 characters: Services are named <name>-primary and so on"),
    selectable = ".spec.rollout.stage",
    selectable = ".status.rollout.stage",
    scale(
        spec_replicas_path = ".spec.proxy.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(name = "Stage", type_ = "string", json_path = ".status.rollout.stage"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.rollout.stage"),
    printcolumn(name = "Split%", type_ = "integer", json_path = ".status.rollout.splitPercent"),
    printcolumn(name = "Mirror%", type_ = "integer", json_path = ".status.rollout.mirrorPercent"),
    printcolumn(name = "Rollout", type_ = "string", json_path = r#".status.conditions[?(@.type=="Progressing")].reason"#),
    printcolumn(name = "Proxies", type_ = "string", json_path = ".status.proxies.summary"),
    printcolumn(name = "Replicas", type_ = "string", json_path = ".status.backends.replicasSummary"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Step", type_ = "string", priority = 1, json_path = ".status.rollout.stepSummary"),
    printcolumn(name = "Soak-Until", type_ = "string", priority = 1, json_path = ".status.rollout.soakUntil"),
    printcolumn(name = "Primary", type_ = "string", priority = 1, json_path = ".status.backends.primary"),
    printcolumn(name = "Config", type_ = "string", priority = 1, json_path = ".status.config.shortHash"),
    printcolumn(name = "Reason", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Ready")].reason"#),
    printcolumn(name = "Message", type_ = "string", priority = 1, json_path = r#".status.conditions[?(@.type=="Progressing")].message"#)
)]
#[x_kube(validation = Rule::new("self.rollout.stage != 'Mirror' || has(self.mirror)")
    .message("stage Mirror needs spec.mirror").field_path(".rollout.stage"))]
#[x_kube(validation = Rule::new(
    "!has(self.mirror) || has(self.mirror.target.database) || !has(self.backends.static) || \
     !self.backends.static.servers.exists(server, \
     server.host == self.mirror.target.host && server.port == self.mirror.target.port)"
).message("the mirror must be another database than the pool's own: name another host or port, or a database there")
    .field_path(".mirror.target"))]
#[serde(rename_all = "camelCase")]
pub struct PgRoutingPoolSpec {
    /// The PostgreSQL servers.
    pub backends: Backends,
    /// Who may log in, and how the proxies log in to the servers for them.
    #[serde(default)]
    pub auth: Auth,
    /// TLS on both sides of the proxies.
    #[serde(default)]
    pub tls: Tls,
    /// Who may use the console of the proxies.
    #[serde(default)]
    pub console: Console,
    /// How connections are shared.
    #[serde(default)]
    pub pooling: Pooling,
    /// The proxies' pods.
    #[serde(default)]
    pub proxy: Proxy,
    /// The Services that clients connect to.
    #[serde(default)]
    pub service: PoolService,
    /// How far the pool may go, and how it gets there.
    #[serde(default)]
    pub rollout: Rollout,
    /// How reads are told from writes, and where they go, from the stage Split on.
    #[serde(default)]
    pub split: Split,
    /// Another database that gets a copy of the traffic, at the stage Mirror, which needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<Mirror>,
    /// Whether the operator acts on the spec.
    #[serde(default)]
    pub reconciliation: Reconciliation,
    /// Whether a NetworkPolicy limits who may connect to the proxies.
    #[serde(default)]
    pub network_policy: NetworkPolicyMode,
}

/// Whether the operator acts on the spec.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reconciliation {
    /// It does.
    #[default]
    Active,
    /// It leaves the pool's objects and its proxies as they are, and only writes the status.
    Suspended,
}

/// Whether a NetworkPolicy limits who may connect to the proxies.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetworkPolicyMode {
    /// None is made.
    #[default]
    Disabled,
    /// Everybody reaches the ports of PostgreSQL and of the metrics; the operator and the pool's own proxies that of the admin API.
    Enabled,
}

/// The PostgreSQL servers. Which of them is the primary is found out by asking them.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[x_kube(validation = Rule::new(
    "(self.type == 'Static') == has(self.static) && (self.type == 'Services') == has(self.services) \
     && (self.type == 'Dns') == has(self.dns)"
).message("set exactly the member that type names"))]
#[serde(rename_all = "camelCase")]
pub struct Backends {
    /// Where the list of servers comes from.
    #[serde(rename = "type")]
    pub kind: BackendsType,
    /// The servers themselves; with type Static.
    #[serde(rename = "static", default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<StaticBackends>,
    /// Services whose endpoints are the servers; with type Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<ServiceBackends>,
    /// Host names whose addresses are the servers; with type Dns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns: Option<DnsBackends>,
    /// How the proxies ask the servers for role and health.
    #[serde(default)]
    pub probe: Probe,
}

/// Where the list of servers comes from.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendsType {
    /// It is written in the spec.
    Static,
    /// It is the endpoints of Services.
    Services,
    /// It is the addresses of host names.
    Dns,
}

/// Servers written in the spec.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StaticBackends {
    /// 1 to 32 servers, each name once.
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub servers: Vec<Server>,
}

/// One PostgreSQL server.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Server {
    /// Its name in status, metrics and logs.
    #[schemars(length(max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Its host name or address.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// Its port.
    #[serde(default = "default_port")]
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
    /// Its share of reads among the replicas; 0 takes none.
    #[serde(default = "default_weight")]
    #[schemars(with = "i32", range(min = 0, max = 1000))]
    pub weight: u32,
    /// Its zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub zone: Option<String>,
}

/// Services whose endpoints are the servers.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ServiceBackends {
    /// The Service of the primary.
    pub primary: BackendService,
    /// The Service of the replicas; it may have the primary among its endpoints too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<BackendService>,
}

/// Host names whose addresses are the servers: each A and AAAA record is one.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[x_kube(validation = Rule::new("duration(self.refresh) >= duration('500ms')")
    .message("refresh must be at least 500ms").field_path(".refresh"))]
#[serde(rename_all = "camelCase")]
pub struct DnsBackends {
    /// The name of the primary.
    pub primary: DnsName,
    /// The name of the replicas; it may have the primary among its addresses too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<DnsName>,
    /// How often to look them up. The resolver keeps to the records' times to live.
    #[serde(default = "default_refresh")]
    pub refresh: PoolDuration,
}

/// A host name and the port of the servers there.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DnsName {
    /// The name.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// The port.
    #[serde(default = "default_port")]
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
}

/// A Service in the pool's namespace.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BackendService {
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The Service's port that is PostgreSQL.
    #[serde(default = "default_port")]
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
}

/// How the proxies ask the servers for role and health, on connections of their own.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// The database that they connect to.
    #[serde(default = "default_database")]
    #[schemars(length(max = 63))]
    pub database: String,
    /// Who they log in as; the first of auth.users, or who asks auth.query, when absent. With auth type Passthrough it is needed, and the role
    /// must be allowed to read pg_catalog.pg_authid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret: Option<CredentialsSecret>,
    /// The longest wait for an answer.
    #[serde(default = "default_probe_timeout")]
    pub timeout: PoolDuration,
}

/// Who may log in.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[x_kube(validation = Rule::new("self.type != 'UserList' || has(self.users)").message("auth type UserList needs auth.users"))]
#[x_kube(validation = Rule::new("self.type != 'Query' || has(self.query)").message("auth type Query needs auth.query"))]
#[serde(rename_all = "camelCase")]
pub struct Auth {
    /// How a client is checked.
    #[serde(rename = "type", default)]
    pub kind: AuthType,
    /// The users, 1 to 128; with type UserList. One Secret may hold several, under different keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into(), "usernameKey".into(), "passwordKey".into()]))]
    pub users: Option<Vec<CredentialsSecret>>,
    /// The query; with type Query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<AuthQuery>,
}

/// A query that says who may log in.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[x_kube(validation = Rule::new("!has(self.sql) || self.sql.contains('$1')")
    .message("sql must have the user's name as $1").field_path(".sql"))]
#[serde(rename_all = "camelCase")]
pub struct AuthQuery {
    /// Who asks; whom the monitors log in as too, when backends.probe names nobody.
    pub credentials_secret: CredentialsSecret,
    /// One statement, run on the primary in the database of backends.probe, with the client's user name as $1. In its first row the second
    /// column is what is stored of the role's password, or that itself; without a row nobody gets in. Tables and functions
    /// outside pg_catalog are named with their schema. When absent, what pg_authid says of roles that may log in now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub sql: Option<String>,
}

/// How a client is checked.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuthType {
    /// Against the primary: every role that can log in there. The proxies never see a password.
    #[default]
    Passthrough,
    /// Against a list of Secrets.
    UserList,
    /// Against what a query of the primary gives.
    Query,
}

/// The Services that clients connect to.
#[derive(KubeSchema, Serialize, Deserialize, Debug, Clone, PartialEq)]
#[x_kube(validation = Rule::new("!has(self.loadBalancerClass) || self.type == 'LoadBalancer'")
    .message("loadBalancerClass needs type LoadBalancer").field_path(".loadBalancerClass"))]
#[x_kube(validation = Rule::new("!has(self.externalTrafficPolicy) || self.type != 'ClusterIP'")
    .message("externalTrafficPolicy needs type NodePort or LoadBalancer").field_path(".externalTrafficPolicy"))]
#[serde(rename_all = "camelCase")]
pub struct PoolService {
    /// Their type.
    #[serde(rename = "type", default)]
    pub kind: ServiceType,
    /// Their port.
    #[serde(default = "default_port")]
    #[schemars(with = "i32", range(min = 1, max = 65535))]
    pub port: u16,
    /// Their annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations_schema")]
    pub annotations: BTreeMap<String, String>,
    /// Which load balancer serves them; with type LoadBalancer. Kubernetes lets nobody change it afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub load_balancer_class: Option<String>,
    /// Whether what comes from outside the cluster may go to a pod of another node; with types NodePort and LoadBalancer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<ExternalTrafficPolicy>,
    /// Which pods a client's connection goes to first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<TrafficDistribution>,
    /// Whether they have addresses of one family or of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// Further Services: `<name>-primary` for Primary, `<name>-readonly` for ReadOnly.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub endpoints: Vec<Endpoint>,
}

/// The type of a Service.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceType {
    /// Reached inside the cluster.
    #[default]
    ClusterIP,
    /// And on a port of each node.
    NodePort,
    /// And through a load balancer.
    LoadBalancer,
}

impl ServiceType {
    /// The name as it stands in a Service.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIP => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// Where what comes from outside the cluster may go.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExternalTrafficPolicy {
    /// To every pod.
    Cluster,
    /// To the pods of the node that it arrives at; the client's address stays to be seen.
    Local,
}

/// Which pods a connection goes to first.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficDistribution {
    /// Those in the client's zone.
    PreferSameZone,
    /// Those on the client's node.
    PreferSameNode,
    /// Those in the client's zone, by the older word.
    PreferClose,
}

/// How many families of addresses a Service has.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpFamilyPolicy {
    /// One.
    SingleStack,
    /// Both, where the cluster has both.
    PreferDualStack,
    /// Both.
    RequireDualStack,
}

impl ExternalTrafficPolicy {
    /// The name as it stands in a Service.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}

impl TrafficDistribution {
    /// The name as it stands in a Service.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PreferSameZone => "PreferSameZone",
            Self::PreferSameNode => "PreferSameNode",
            Self::PreferClose => "PreferClose",
        }
    }
}

impl IpFamilyPolicy {
    /// The name as it stands in a Service.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SingleStack => "SingleStack",
            Self::PreferDualStack => "PreferDualStack",
            Self::RequireDualStack => "RequireDualStack",
        }
    }
}

/// A further Service of a pool.
#[derive(JsonSchema, Serialize, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Every statement runs on the primary.
    Primary,
    /// Every statement runs on a replica.
    ReadOnly,
}

impl Default for Probe {
    fn default() -> Self {
        Self { database: default_database(), credentials_secret: None, timeout: default_probe_timeout() }
    }
}

impl Default for Auth {
    fn default() -> Self {
        Self { kind: AuthType::Passthrough, users: None, query: None }
    }
}

impl Default for PoolService {
    fn default() -> Self {
        Self {
            kind: ServiceType::ClusterIP,
            port: default_port(),
            annotations: BTreeMap::new(),
            load_balancer_class: None,
            external_traffic_policy: None,
            traffic_distribution: None,
            ip_family_policy: None,
            endpoints: Vec::new(),
        }
    }
}

fn annotations_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"type": "string", "maxLength": 4096}
    })
}

const fn default_port() -> u16 {
    5432
}

const fn default_refresh() -> PoolDuration {
    PoolDuration::from_secs(1)
}

const fn default_weight() -> u32 {
    100
}

fn default_database() -> String {
    "postgres".to_owned()
}

const fn default_probe_timeout() -> PoolDuration {
    PoolDuration::from_secs(1)
}
