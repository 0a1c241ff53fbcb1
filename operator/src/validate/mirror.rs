//! The mirror as its document has it; while its Secret has never been seen, the one of before.

use pgrouting_contract::config::{ProxyConfig, ServerConfig, UserConfig};
use pgrouting_contract::duration::DurationText;
use pgrouting_contract::mirror::{MirrorConfig, MirrorStatements};
use pgrouting_contract::tls::ServerTlsConfig;
use pgrouting_crds::spec::mirror::{Mirror, MirrorTarget};
use pgrouting_crds::spec::{PgRoutingPoolSpec, mirror as api};
use pgrouting_crds::stage::Stage;

use crate::position::{Position, stage_of};
use crate::validate::tls::MirrorTlsState;

/// Who the proxies log in as at the mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MirrorLogin {
    /// Each client's own role.
    OwnRoles,
    /// The one in these files.
    User(UserConfig),
    /// That of a Secret that nobody has ever seen.
    Unseen,
}

/// What the API server refuses too, unless its definition is an older one or the servers come from elsewhere.
pub fn mirror_faults(spec: &PgRoutingPoolSpec, servers: &[ServerConfig], faults: &mut Vec<String>) {
    let Some(mirror) = &spec.mirror else {
        if spec.rollout.stage == Stage::Mirror {
            faults.push("spec.mirror: stage Mirror needs it; say in spec.mirror.target where".to_owned());
        }
        return;
    };
    let MirrorTarget { host, port, database } = &mirror.target;
    let is_there = |server: &&ServerConfig| server.host.eq_ignore_ascii_case(host) && server.port == *port;
    if let (Some(server), None) = (servers.iter().find(is_there), database) {
        faults.push(format!(
            "spec.mirror.target: {host}:{port} is the server {} of the pool; name another host or port, or a database there",
            server.name
        ));
    }
}

/// The mirror and the stage. Traffic is never sent anywhere with a login that was meant for another place, so a Secret
/// or a CA that nobody has seen leaves the mirror of before as a whole; where there is none, the stage stays as it was.
pub fn mirror(
    spec: &PgRoutingPoolSpec,
    position: &Position,
    login: MirrorLogin,
    tls: &MirrorTlsState,
    previous: Option<&ProxyConfig>,
    each: impl Fn(u32) -> u32,
) -> (Option<MirrorConfig>, Stage) {
    let target = position.stage;
    let Some(mirror) = &spec.mirror else { return (None, target) };
    let login = match login {
        MirrorLogin::OwnRoles => Some(None),
        MirrorLogin::User(user) => Some(Some(user)),
        MirrorLogin::Unseen => None,
    };
    let (user, tls) = match (login, tls) {
        (Some(user), MirrorTlsState::Known(tls)) => (user, tls.clone()),
        (None, _) | (_, MirrorTlsState::Unseen) => {
            let before = previous.and_then(|previous| previous.mirror.clone());
            let before = before.map(|before| MirrorConfig {
                percent: position.mirror_percent,
                salt: position.salt_of(position.mirror_percent),
                ..before
            });
            let stage = match (target, &before) {
                (Stage::Mirror, None) => stage_before(previous),
                (Stage::Mirror, Some(_)) | (Stage::PoolingOnly | Stage::Split, _) => target,
            };
            return (before, stage);
        }
    };
    (Some(mirror_config(mirror, position, user, tls, each)), target)
}

fn stage_before(previous: Option<&ProxyConfig>) -> Stage {
    // Without a mirror there was no stage Mirror.
    previous.map_or(Stage::PoolingOnly, stage_of).min(Stage::Split)
}

fn mirror_config(
    mirror: &Mirror,
    position: &Position,
    user: Option<UserConfig>,
    tls: Option<ServerTlsConfig>,
    each: impl Fn(u32) -> u32,
) -> MirrorConfig {
    let Mirror {
        target: MirrorTarget { host, port, database },
        credentials_secret: _,
        tls: _,
        max_percent: _,
        statements,
        queue_bytes,
        budget_bytes,
        max_connections,
        transaction_timeout,
        parameters,
    } = mirror.clone();
    let timeout = u64::try_from(transaction_timeout.get().as_millis()).unwrap_or(u64::MAX);
    MirrorConfig {
        host,
        port,
        database,
        user,
        tls,
        percent: position.mirror_percent,
        salt: position.salt_of(position.mirror_percent),
        statements: match statements {
            api::MirrorStatements::ReadsOnly => MirrorStatements::ReadsOnly,
            api::MirrorStatements::RolledBackWrites => MirrorStatements::RolledBackWrites,
            api::MirrorStatements::All => MirrorStatements::All,
        },
        queue_bytes,
        budget_bytes,
        max_connections: each(max_connections),
        transaction_timeout: DurationText::from_millis(timeout),
        parameters,
    }
}

#[cfg(test)]
mod tests;
