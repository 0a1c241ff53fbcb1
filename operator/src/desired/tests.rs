//! The objects of a pool: what restarts pods and what does not, and what each object promises.

use pgrouting_contract::config::{Generation, ProxyConfig};
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::mirror::{MirrorConfig, MirrorStatements};
use pgrouting_contract::split::{Cohort, Consistency, SplitConfig, WhenNoReplica};
use pgrouting_contract::stage::Stage;
use pgrouting_contract::tls::ServerTlsConfig;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{IMAGE, SMALL, at, built, pool, refs, validated};
use crate::position::Position;
use crate::validate::validate;

fn json_of<T: serde::Serialize>(object: &T) -> Value {
    serde_json::to_value(object).unwrap()
}

fn template_bytes(spec: &str) -> Vec<u8> {
    serde_json::to_vec(&built(spec).deployment.spec.unwrap().template).unwrap()
}

#[test]
fn servers_limits_users_and_settings_leave_the_pod_template_byte_for_byte() {
    let before = template_bytes(SMALL);
    for (what, spec) in [
        ("servers", SMALL.replace("{name: pg-1, host: pg-1.pg}", "{name: pg-9, host: pg-9.pg, weight: 3}")),
        ("users", SMALL.replace("[{name: app}]", "[{name: app}, {name: report, passwordKey: pw}]")),
        ("limits", format!("{SMALL}pooling: {{maxServerConnections: 7, maxClientConnectionsPerProxy: 9}}")),
        ("times", format!("{SMALL}pooling: {{queryTimeout: 9s, slowQueryThreshold: 1s}}")),
        (
            "mode",
            format!(
                "{SMALL}pooling: {{mode: Session, pinPolicy: Reject, checkoutTimeout: 1s, serverIdleTimeout: 1m}}"
            ),
        ),
        (
            "stage",
            format!("{SMALL}rollout: {{stage: Split}}\nsplit: {{maxPercent: 7, primaryTables: [jobs]}}"),
        ),
        ("settings", format!("{SMALL}pooling: {{parameters: {{statement_timeout: 30s}}}}")),
        (
            "mirror",
            format!(
                "{SMALL}rollout: {{stage: Mirror}}\nmirror: {{target: {{host: m}}, credentialsSecret: {{name: m}}}}"
            ),
        ),
        ("replicas", format!("{SMALL}proxy: {{replicas: 9}}")),
        ("budget", format!("{SMALL}proxy: {{disruption: {{budget: None}}}}")),
        ("services", format!("{SMALL}service: {{type: NodePort, port: 6432, endpoints: [Primary]}}")),
        ("probe", SMALL.replace("type: Static,", "type: Static, probe: {database: app, timeout: 3s},")),
    ] {
        assert_ne!(built(&spec).deployment.metadata.name, None);
        assert_eq!(template_bytes(&spec), before, "{what}");
    }
    // The test would see a change.
    assert_ne!(template_bytes(&format!("{SMALL}proxy: {{image: other}}")), before);
}

#[test]
fn pod_template_has_no_version_and_no_hash() {
    let template = json_of(&built(SMALL).deployment.spec.unwrap().template);
    let text = template.to_string();
    assert!(!text.contains(env!("CARGO_PKG_VERSION")), "{text}");
    assert_eq!(template["metadata"].get("annotations"), None);
}

#[test]
fn pod_is_told_its_zone() {
    let template = built(SMALL).deployment.spec.unwrap().template.spec.unwrap();
    let env = template.containers[0].env.as_ref().unwrap();
    let zone = env.iter().find(|env| env.name == "PGROUTING_ZONE").unwrap();
    let field = zone.value_from.as_ref().unwrap().field_ref.as_ref().unwrap();
    assert_eq!(field.field_path, "metadata.labels['topology.kubernetes.io/zone']");
}

#[test]
fn pod_meets_the_restricted_standard_without_a_token() {
    let template = json_of(&built(SMALL).deployment.spec.unwrap().template);
    let spec = &template["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["securityContext"]["runAsUser"], 65532);
    assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(
        spec["containers"][0]["securityContext"],
        json!({
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
        })
    );
    // Case 240: what a pod gets is more than what its clients get to leave.
    assert_eq!(spec["terminationGracePeriodSeconds"], 70);
}

#[test]
fn no_mount_is_by_subpath_and_the_proxy_never_sees_the_ca_key() {
    let template = json_of(&built(SMALL).deployment.spec.unwrap().template).to_string();
    assert!(!template.contains("subPath"));
    for hidden in ["ca.key", "client.key", "client.crt"] {
        assert!(!template.contains(hidden), "{hidden}");
    }
}

#[test]
fn user_template_is_merged_under_ours() {
    let spec = format!(
        "{SMALL}
proxy:
  resources: {{requests: {{cpu: 100m}}}}
  podTemplate:
    metadata: {{labels: {{team: a, app.kubernetes.io/instance: stolen}}, annotations: {{note: b}}}}
    spec:
      automountServiceAccountToken: true
      tolerations: [{{key: spot, operator: Exists}}]
      topologySpreadConstraints: []
      containers:
      - {{name: proxy, image: evil, env: [{{name: RUST_BACKTRACE, value: '1'}}]}}
      - {{name: sidecar, image: side:1}}
"
    );
    let template = json_of(&built(&spec).deployment.spec.unwrap().template);
    assert_eq!(template["metadata"]["labels"]["team"], "a");
    assert_eq!(template["metadata"]["labels"]["app.kubernetes.io/instance"], "ledger");
    assert_eq!(template["metadata"]["annotations"]["note"], "b");
    let pod = &template["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["tolerations"][0]["key"], "spot");
    assert!(!pod["topologySpreadConstraints"].to_string().contains("hostname"));
    let containers = pod["containers"].as_array().unwrap();
    let proxy = containers.iter().find(|container| container["name"] == "proxy").unwrap();
    assert_eq!(containers.len(), 2);
    assert_eq!(proxy["image"], IMAGE);
    assert_eq!(proxy["env"][0]["name"], "RUST_BACKTRACE");
    assert_eq!(proxy["resources"]["requests"]["cpu"], "100m");
}

#[test]
fn every_object_has_labels_and_the_pool_as_controller() {
    let objects = built(&format!("{SMALL}service: {{endpoints: [Primary, ReadOnly]}}"));
    let mut all = vec![
        json_of(&objects.config_map),
        json_of(&objects.admin),
        json_of(&objects.users),
        json_of(&objects.service_account.unwrap()),
        json_of(&objects.disruption_budget.unwrap()),
        json_of(&objects.deployment),
    ];
    all.extend(objects.services.iter().map(json_of));
    assert_eq!(all.len(), 10);
    for object in &all {
        let metadata = &object["metadata"];
        assert_eq!(metadata["namespace"], "acme");
        assert_eq!(metadata["labels"]["app.kubernetes.io/instance"], "ledger", "{object}");
        assert_eq!(metadata["labels"]["app.kubernetes.io/managed-by"], "pg-routing-operator");
        let owner = &metadata["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&json!("uid-1"), &json!(true)));
        assert_eq!(owner["apiVersion"], "pgrouting.dev/v1alpha1");
    }
}

#[test]
fn services_lead_to_the_ports_of_their_meaning() {
    let objects = built(&format!("{SMALL}service: {{port: 6432, endpoints: [Primary, ReadOnly]}}"));
    let seen: Vec<_> = objects
        .services
        .iter()
        .map(|service| {
            let service = json_of(service);
            let port = &service["spec"]["ports"][0];
            (service["metadata"]["name"].clone(), port["port"].clone(), port["targetPort"].clone())
        })
        .collect();
    assert_eq!(
        seen,
        [
            (json!("ledger"), json!(6432), json!("postgres")),
            (json!("ledger-primary"), json!(6432), json!("primary")),
            (json!("ledger-readonly"), json!(6432), json!("readonly")),
            (json!("ledger-peers"), json!(9128), json!("admin")),
        ]
    );
}

#[test]
fn peers_find_every_pod_whatever_clients_are_offered() {
    let spec = format!("{SMALL}service: {{type: LoadBalancer, annotations: {{a: b}}}}");
    let objects = built(&spec);
    let peers = json_of(objects.services.last().unwrap());
    assert_eq!(peers["metadata"].get("annotations"), None);
    let spec = &peers["spec"];
    assert_eq!((&spec["type"], &spec["clusterIP"]), (&json!("ClusterIP"), &json!("None")));
    assert_eq!(spec["publishNotReadyAddresses"], true, "a draining pod has sessions to cancel");
    assert_eq!(spec["selector"], json_of(&objects.deployment.spec.unwrap().selector)["matchLabels"]);
    let named = objects.document.config.peers.unwrap();
    assert_eq!((named.host.as_deref(), named.port), (Some("ledger-peers.acme.svc"), 9128));
}

#[test]
fn peers_secret_is_made_once_and_mounted_where_the_document_says() {
    let pool = pool(SMALL);
    let mut refs = refs(&pool);
    let validated = validated(&pool, &refs);
    let secret_of = |admin: &Secret| admin.data.as_ref().unwrap()["peers.secret"].0.clone();
    let objects = desired(&validated, &refs, 0, at(0)).unwrap();
    let first = secret_of(&objects.admin);
    assert_eq!(first.len(), 32);
    let file = objects.document.config.peers.unwrap().secret_file;
    assert_eq!(file, "/etc/pgrouting/admin/peers.secret");
    let template = json_of(&objects.deployment.spec.unwrap().template).to_string();
    assert!(template.contains(r#"{"key":"peers.secret","path":"peers.secret"}"#), "{template}");

    // An admin Secret of an earlier version has none, and keeps its certificates.
    let mut earlier = objects.admin.clone();
    earlier.data.as_mut().unwrap().remove("peers.secret");
    for (stored, is_kept) in [(objects.admin, true), (earlier, false)] {
        refs.admin = Some(stored.clone());
        let next = desired(&validated, &refs, 0, at(0)).unwrap().admin;
        assert_eq!(secret_of(&next) == first, is_kept);
        assert_eq!(next.data.unwrap()["tls.crt"], stored.data.unwrap()["tls.crt"]);
    }
}

#[test]
fn named_service_account_and_no_budget_make_no_objects() {
    let objects = built(&format!("{SMALL}proxy: {{serviceAccountName: mine, disruption: {{budget: None}}}}"));
    assert!(objects.service_account.is_none() && objects.disruption_budget.is_none());
    assert_eq!(objects.deployment.spec.unwrap().template.spec.unwrap().service_account_name.unwrap(), "mine");
}

#[test]
fn document_reads_as_the_contract_wants_it_and_names_files_only() {
    let objects = built(SMALL);
    let text = &objects.config_map.data.unwrap()["config.json"];
    let config = ProxyConfig::parse(text.as_bytes()).unwrap();
    assert_eq!(config.pool, "acme/ledger");
    assert_eq!(config.hash(), objects.document.hash);
    assert!(!text.contains("\"password\":"), "{text}");
    let users = objects.users.data.unwrap();
    assert!(users.keys().any(|key| text.contains(&format!("/etc/pgrouting/users/{key}"))));
}

#[test]
fn section_on_the_split_is_in_the_document_field_by_field() {
    let document = built(&format!(
        "{SMALL}
rollout: {{stage: Split}}
split:
  maxPercent: 30
  cohort: Transaction
  consistency: Bounded
  maxStaleness: 500ms
  ejectLag: 1m
  slowStart: 0s
  preferZone: false
  whenNoReplica: Fail
  primaryReads: true
  rescue: false
  primaryUsers: [billing]
  primaryTables: [jobs]
  primaryFunctions: [next_job]
  readFunctions: [price_of]
  catalogInterval: 1m
"
    ))
    .document;
    assert_eq!(document.config.stage, Stage::Split);
    assert_eq!(
        document.config.split,
        SplitConfig {
            percent: 30,
            cohort: Cohort::Transaction,
            consistency: Consistency::Bounded,
            max_staleness: Some(DurationText::from_millis(500)),
            eject_lag: DurationText::from_secs(60),
            slow_start: DurationText::from_secs(0),
            prefer_zone: false,
            when_no_replica: WhenNoReplica::Fail,
            primary_reads: true,
            rescue: false,
            primary_users: vec!["billing".to_owned()],
            primary_tables: vec!["jobs".to_owned()],
            primary_functions: vec!["next_job".to_owned()],
            read_functions: vec!["price_of".to_owned()],
            catalog_interval: DurationText::from_secs(60),
            ..SplitConfig::default()
        }
    );
}

#[test]
fn console_is_there_for_those_who_are_named() {
    assert_eq!(built(SMALL).document.config.console, None);
    let named = built(&format!("{SMALL}console: {{adminUsers: [dba], statsUsers: [exporter]}}\n"));
    let console = named.document.config.console.unwrap();
    assert_eq!(
        (console.admin_users.as_slice(), console.stats_users.as_slice()),
        (&["dba".to_owned()][..], &["exporter".to_owned()][..])
    );
    assert_eq!(console.database, "pgbouncer");
}

#[test]
fn pool_that_says_nothing_of_the_split_has_the_defaults_of_the_proxy() {
    let config = built(SMALL).document.config;
    assert_eq!(config.stage, Stage::PoolingOnly);
    // Nothing is split at that stage.
    assert_eq!(config.split, SplitConfig { percent: 0, ..SplitConfig::default() });
}

#[test]
fn lots_of_a_share_are_drawn_anew_with_each_attempt() {
    let pool = pool(&format!("{SMALL}rollout: {{stage: Mirror}}\nmirror: {{target: {{host: m}}}}\n"));
    let refs = refs(&pool);
    let salts = |split_percent, mirror_percent| {
        let position =
            Position { stage: pgrouting_crds::stage::Stage::Mirror, split_percent, mirror_percent, salt: 2 };
        let pool = validate(&pool, &refs, &position, IMAGE).unwrap();
        let config = desired(&pool, &refs, 0, at(0)).unwrap().document.config;
        (config.split.salt, config.mirror.unwrap().salt)
    };
    assert_eq!(salts(100, 10), (0, 2));
    assert_eq!(salts(50, 100), (2, 0));
}

#[test]
fn section_on_the_mirror_is_in_the_document_field_by_field_whatever_the_stage() {
    for (stage, expected, percent) in
        [("PoolingOnly", Stage::PoolingOnly, 0), ("Split", Stage::Split, 0), ("Mirror", Stage::Mirror, 30)]
    {
        let objects = built(&format!(
            "{SMALL}
rollout: {{stage: {stage}}}
mirror:
  target: {{host: pg-new.pg, port: 6432, database: next}}
  credentialsSecret: {{name: mirror, usernameKey: u, passwordKey: p}}
  maxPercent: 30
  statements: RolledBackWrites
  queueBytes: 4096
  budgetBytes: 8192
  maxConnections: 9
  transactionTimeout: 2s
  parameters: {{jit: 'off'}}
"
        ));
        let config = objects.document.config;
        let user = config.mirror.as_ref().unwrap().user.clone().unwrap();
        let users = objects.users.data.unwrap();
        let file = user.password_file.as_deref().unwrap().strip_prefix("/etc/pgrouting/users/").unwrap();
        assert_eq!(users[file].0, b"p", "{stage}");
        assert_eq!(config.stage, expected);
        assert_eq!(
            config.mirror.unwrap(),
            MirrorConfig {
                database: Some("next".to_owned()),
                user: Some(user),
                percent,
                statements: MirrorStatements::RolledBackWrites,
                queue_bytes: 4096,
                budget_bytes: 8192,
                // Two proxies share nine.
                max_connections: 4,
                transaction_timeout: DurationText::from_secs(2),
                parameters: [("jit".to_owned(), "off".to_owned())].into(),
                tls: Some(ServerTlsConfig::default()),
                ..MirrorConfig::at("pg-new.pg".to_owned(), 6432)
            }
        );
    }
}

#[test]
fn pool_without_a_mirror_has_none_and_a_bare_one_has_the_defaults_of_the_proxy() {
    assert_eq!(built(SMALL).document.config.mirror, None);
    let bare = built(&format!("{SMALL}mirror: {{target: {{host: m}}}}")).document.config;
    assert_eq!(bare.stage, Stage::PoolingOnly);
    let tls = Some(ServerTlsConfig::default());
    let expected = MirrorConfig { percent: 0, tls, ..MirrorConfig::at("m".to_owned(), 5432) };
    assert_eq!(bare.mirror, Some(expected));
}

#[test]
fn limits_and_times_are_in_the_document_and_none_is_where_the_spec_has_none() {
    let pooling = "maxClientConnectionsPerUser: 5, maxClientConnectionsPerDatabase: 6, maxServerConnectionsPerUser: 8, \
                   queryTimeout: 1s, transactionTimeout: 2s, idleTransactionTimeout: 3s, clientIdleTimeout: 4m, \
                   slowQueryThreshold: 500ms";
    let document = |spec: &str| built(spec).document.config.pooling;
    let given = document(&format!("{SMALL}pooling: {{{pooling}}}"));
    // The two proxies share what one user may have at the servers; the others are limits of each.
    let clients = (given.max_client_connections_per_user, given.max_client_connections_per_database);
    assert_eq!((clients, given.max_server_connections_per_user), ((Some(5), Some(6)), Some(4)));
    assert_eq!(given.timeouts().map(|(_, time)| time.get().as_secs()), [1, 2, 3, 240]);
    assert_eq!(given.slow_query_threshold, DurationText::from_millis(500));
    let none = document(SMALL);
    assert_eq!((none.max_server_connections_per_user, none.slow_query_threshold), (None, DurationText::ZERO));
    assert!(none.timeouts().iter().all(|(_, time)| time.is_zero()));
}

fn generation(previous: Option<&ProxyConfig>, in_status: u64, foreign: u64, spec: &str) -> u64 {
    let pool = pool(spec);
    let mut refs = refs(&pool);
    refs.previous = previous.cloned();
    refs.generation_floor = foreign;
    desired(&validated(&pool, &refs), &refs, in_status, at(0)).unwrap().document.config.generation.0
}

#[test]
fn generation_grows_with_each_change_and_only_then() {
    let mut before = built(SMALL).document.config;
    before.generation = Generation(5);
    let changed = format!("{SMALL}pooling: {{mode: Session}}");
    // Nothing was before.
    assert_eq!(generation(None, 0, 0, SMALL), 1);
    // The same content keeps its number, whatever older ones are about.
    assert_eq!(generation(Some(&before), 5, 4, SMALL), 5);
    // Other content gets the next one.
    assert_eq!(generation(Some(&before), 5, 0, &changed), 6);
    // The ConfigMap was deleted: the status remembers.
    assert_eq!(generation(None, 5, 0, SMALL), 6);
    // A proxy runs another document with a higher number, or with the same one.
    assert_eq!(generation(Some(&before), 5, 9, SMALL), 10);
    assert_eq!(generation(Some(&before), 5, 5, SMALL), 6);
}

#[test]
fn admin_secret_is_kept_and_its_content_fits() {
    let pool = pool(SMALL);
    let mut refs = refs(&pool);
    let validated = validated(&pool, &refs);
    let first = desired(&validated, &refs, 0, at(0)).unwrap().admin;
    refs.admin = Some(first.clone());
    let second = desired(&validated, &refs, 0, at(86_400)).unwrap().admin;
    assert_eq!(first, second);
    assert!(secret::admin_certificates(&second).is_some());
}

#[test]
fn impossible_setting_is_an_error_that_names_it() {
    let pool = pool(&format!("{SMALL}pooling: {{parameters: {{'a b': x}}}}"));
    let refs = refs(&pool);
    let error = desired(&validated(&pool, &refs), &refs, 0, at(0)).unwrap_err();
    assert!(error.to_string().contains("pooling.parameters: \"a b\""), "{error}");
}

/// What each field of `spec.service` is in the Service of clients; what nobody asked for is left to the API server, so that
/// nothing that it fills in (clusterIP, nodePort, families) is ever written.
#[test]
fn fields_of_the_service_are_in_it_and_all_else_is_left_to_the_api_server() {
    let service =
        |spec: &str| json_of(&built(&format!("{SMALL}service: {spec}")).services[0])["spec"].clone();
    for (spec, field, expected) in [
        (
            "{type: LoadBalancer, loadBalancerClass: example.org/lb}",
            "loadBalancerClass",
            json!("example.org/lb"),
        ),
        ("{type: NodePort, externalTrafficPolicy: Local}", "externalTrafficPolicy", json!("Local")),
        ("{type: LoadBalancer, externalTrafficPolicy: Cluster}", "externalTrafficPolicy", json!("Cluster")),
        ("{trafficDistribution: PreferSameZone}", "trafficDistribution", json!("PreferSameZone")),
        ("{trafficDistribution: PreferSameNode}", "trafficDistribution", json!("PreferSameNode")),
        ("{trafficDistribution: PreferClose}", "trafficDistribution", json!("PreferClose")),
        ("{ipFamilyPolicy: PreferDualStack}", "ipFamilyPolicy", json!("PreferDualStack")),
        ("{ipFamilyPolicy: RequireDualStack}", "ipFamilyPolicy", json!("RequireDualStack")),
        ("{ipFamilyPolicy: SingleStack}", "ipFamilyPolicy", json!("SingleStack")),
    ] {
        assert_eq!(service(spec)[field], expected, "{spec}");
        assert_eq!(service("{}").get(field), None, "{field} is left open");
    }
    let plain = service("{type: NodePort}");
    let fields: Vec<_> = plain.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fields, ["ports", "selector", "type"]);
    let port: Vec<_> = plain["ports"][0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(port, ["name", "port", "protocol", "targetPort"]);
}

/// What a user may lay under the template, and where it is to be found in it.
#[test]
fn each_part_of_a_users_template_is_in_the_pods() {
    for (part, path, expected) in [
        ("metadata: {labels: {team: a}}", "/metadata/labels/team", json!("a")),
        ("metadata: {annotations: {note: b}}", "/metadata/annotations/note", json!("b")),
        ("spec: {priorityClassName: high}", "/spec/priorityClassName", json!("high")),
        ("spec: {nodeSelector: {disk: ssd}}", "/spec/nodeSelector/disk", json!("ssd")),
        (
            "spec: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: rack}]}}}",
            "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/topologyKey",
            json!("rack"),
        ),
        (
            "spec: {topologySpreadConstraints: [{maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]}",
            "/spec/topologySpreadConstraints/0/topologyKey",
            json!("rack"),
        ),
        ("spec: {containers: [{name: side, image: 'side:1'}]}", "/spec/containers/0/image", json!("side:1")),
        (
            "spec: {containers: [{name: proxy, resources: {limits: {memory: 1Gi}}}]}",
            "/spec/containers/0/resources/limits/memory",
            json!("1Gi"),
        ),
        (
            "spec: {containers: [{name: proxy, env: [{name: A, value: b}]}]}",
            "/spec/containers/0/env/0/name",
            json!("A"),
        ),
        ("spec: {volumes: [{name: extra, emptyDir: {}}]}", "/spec/volumes/0/name", json!("extra")),
        (
            "spec: {containers: [{name: proxy, volumeMounts: [{name: extra, mountPath: /extra}]}]}",
            "/spec/containers/0/volumeMounts/0/mountPath",
            json!("/extra"),
        ),
    ] {
        let spec = format!("{SMALL}proxy: {{podTemplate: {{{part}}}}}");
        let template = json_of(&built(&spec).deployment.spec.unwrap().template);
        assert_eq!(template.pointer(path), Some(&expected), "{part}: {template}");
        let names: Vec<_> =
            template["spec"]["containers"].as_array().unwrap().iter().map(|c| c["name"].clone()).collect();
        assert_eq!(names.iter().filter(|name| **name == json!("proxy")).count(), 1, "{part}");
    }
}

#[test]
fn pods_are_spread_over_hosts_and_zones_where_that_can_be_and_nobody_says_otherwise() {
    let spread = |spec: &str| {
        let template = json_of(&built(spec).deployment.spec.unwrap().template);
        template["spec"].get("topologySpreadConstraints").cloned()
    };
    let usual = spread(SMALL).unwrap();
    let keys: Vec<_> = usual
        .as_array()
        .unwrap()
        .iter()
        .map(|spread| (spread["topologyKey"].clone(), spread["whenUnsatisfiable"].clone()))
        .collect();
    let soft = json!("ScheduleAnyway");
    assert_eq!(
        keys,
        [(json!("kubernetes.io/hostname"), soft.clone()), (json!("topology.kubernetes.io/zone"), soft)]
    );
    let own = "proxy: {podTemplate: {spec: {topologySpreadConstraints: [{maxSkew: 1, topologyKey: rack, \
               whenUnsatisfiable: DoNotSchedule}]}}}";
    let own = spread(&format!("{SMALL}{own}")).unwrap();
    assert_eq!(own.as_array().unwrap().len(), 1, "the user's take the place of ours");
}

/// Case 225: what is drained is not killed before.
#[test]
fn pods_have_more_time_than_their_drain_takes() {
    for (drain, least) in [("60s", 60), ("1500ms", 2), ("10m", 600)] {
        let template = json_of(&built(&format!("{SMALL}proxy: {{drainTimeout: {drain}}}")).deployment);
        let grace = template.pointer("/spec/template/spec/terminationGracePeriodSeconds").unwrap();
        assert!(grace.as_i64().unwrap() > least, "{drain}: {grace}");
    }
}

/// Case 220: one server, which is the primary, at the stage Split.
#[test]
fn pool_without_a_replica_may_be_split() {
    let alone = "backends: {type: Static, static: {servers: [{name: pg-0, host: pg-0.pg}]}}
auth: {type: UserList, users: [{name: app}]}
rollout: {stage: Split}
";
    assert_eq!(built(alone).document.config.servers.len(), 1);
}

/// Case 221: one address twice, however it is written.
#[test]
fn server_that_is_there_twice_is_refused_with_both_names() {
    for (host, port) in [("PG-0.pg.", ""), ("pg-0.pg", ", port: 5432"), ("pg-0.pg.", ""), ("PG-0.PG", "")] {
        let spec = SMALL.replace("host: pg-1.pg", &format!("host: {host}{port}"));
        let pool = pool(&spec);
        let refs = refs(&pool);
        let error = desired(&validated(&pool, &refs), &refs, 0, at(0)).unwrap_err().to_string();
        assert!(
            error.contains("pg-0") && error.contains("pg-1") && error.contains("twice"),
            "{host}: {error}"
        );
    }
    let other = SMALL.replace("host: pg-1.pg", "host: pg-0.pg, port: 5433");
    assert_eq!(built(&other).document.config.servers.len(), 2, "another port is another server");
}

/// The template of the smallest pool, byte for byte: another version of the operator that writes other bytes restarts
/// every proxy of every pool. Only the image may differ.
#[test]
fn pod_template_is_the_same_in_every_version_of_the_operator() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/pod_template.json");
    let template = json_of(&built(SMALL).deployment.spec.unwrap().template);
    let now = format!("{}\n", serde_json::to_string_pretty(&template).unwrap());
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        now == golden,
        "{} differs. If every proxy may be restarted by the next version, put this there:\n{now}",
        path.display()
    );
}
