//! What makes a document unsound: every reason at once, each with the path of its field.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{AuthConfig, ProxyConfig, UserConfig};
use crate::stage::Stage;

/// The longest query for users, in bytes.
const AUTH_QUERY_BYTES_MAX: usize = 4096;

impl ProxyConfig {
    /// Every reason why the document is not sound.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.version != 1 {
            faults.push(format!("version: {} is not known, 1 is", self.version));
        }
        if self.servers.is_empty() || self.servers.len() > 64 {
            faults.push(format!("servers: {} given, 1 to 64 are allowed", self.servers.len()));
        }
        let mut names = BTreeSet::new();
        let mut addresses = BTreeMap::new();
        for (index, server) in self.servers.iter().enumerate() {
            if !is_dns_label(&server.name) {
                faults.push(format!(
                    "servers[{index}].name: {:?} must be 1 to 63 lower-case letters, digits and dashes",
                    server.name
                ));
            }
            if !names.insert(&server.name) {
                faults.push(format!("servers[{index}].name: {:?} is there twice", server.name));
            }
            if server.host.is_empty() || server.host.len() > 253 {
                faults.push(format!("servers[{index}].host: must have 1 to 253 characters"));
            }
            if server.port == 0 {
                faults.push(format!("servers[{index}].port: must be 1 to 65535"));
            }
            // The root's dot at the end and the case of letters make no other name.
            let host = server.host.trim_end_matches('.').to_ascii_lowercase();
            if let Some(first) = addresses.insert((host, server.port), &server.name) {
                faults.push(format!(
                    "servers[{index}]: {}:{} is there twice, as {first} and as {}",
                    server.host, server.port, server.name
                ));
            }
            if server.weight > 1000 {
                faults.push(format!("servers[{index}].weight: {} is over 1000", server.weight));
            }
        }
        self.auth_faults(&mut faults);
        self.pooling.faults(&mut faults);
        self.split.faults(&mut faults);
        if let Some(peers) = &self.peers {
            peers.faults(&mut faults);
        }
        if let Some(tls) = &self.tls {
            tls.faults(&mut faults);
        }
        if let Some(console) = &self.console {
            console.faults(&mut faults);
        }
        match &self.mirror {
            Some(mirror) => mirror.faults(&mut faults),
            None if self.stage == Stage::Mirror => faults.push("stage: Mirror needs mirror".to_owned()),
            None => {}
        }
        if self.probe.interval.get().as_millis() < 100 {
            faults.push("probe.interval: must be at least 100ms".to_owned());
        }
        if self.probe.timeout.get().is_zero() {
            faults.push("probe.timeout: must not be zero".to_owned());
        }
        faults
    }

    fn auth_faults(&self, faults: &mut Vec<String>) {
        match &self.auth {
            AuthConfig::UserList { users } => {
                if users.is_empty() || users.len() > 128 {
                    faults.push(format!("auth.users: {} given, 1 to 128 are allowed", users.len()));
                }
                let mut names = BTreeSet::new();
                for (index, user) in users.iter().enumerate() {
                    user.faults(&format!("auth.users[{index}]"), faults);
                    if let Some(name) = &user.name
                        && !names.insert(name)
                    {
                        faults.push(format!("auth.users[{index}].name: {name:?} is there twice"));
                    }
                }
            }
            AuthConfig::Query { user, sql } => {
                user.faults("auth.user", faults);
                if !sql.contains("$1") {
                    faults.push("auth.sql: must have the user's name as $1".to_owned());
                }
                if sql.len() > AUTH_QUERY_BYTES_MAX || sql.contains('\0') {
                    faults
                        .push(format!("auth.sql: must have at most {AUTH_QUERY_BYTES_MAX} bytes and no NUL"));
                }
            }
            AuthConfig::Passthrough {} => {
                if self.probe.user.is_none() {
                    faults.push(
                        "probe.user: auth type Passthrough needs a user who may read pg_catalog.pg_authid"
                            .to_owned(),
                    );
                }
            }
        }
        if let Some(user) = &self.probe.user {
            user.faults("probe.user", faults);
        }
    }
}

impl UserConfig {
    pub(crate) fn faults(&self, path: &str, faults: &mut Vec<String>) {
        if self.name.is_some() == self.name_file.is_some() {
            faults.push(format!("{path}: give either name or nameFile"));
        }
        if self.password.is_some() == self.password_file.is_some() {
            faults.push(format!("{path}: give either password or passwordFile"));
        }
    }
}

/// What is wrong with settings that connections start with.
pub(crate) fn parameter_faults(path: &str, parameters: &BTreeMap<String, String>, faults: &mut Vec<String>) {
    if parameters.len() > 64 {
        faults.push(format!("{path}: {} given, at most 64 are allowed", parameters.len()));
    }
    for (name, value) in parameters {
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.$".contains(c));
        if !is_name {
            faults.push(format!("{path}: {name:?} is not the name of a setting"));
        }
        if matches!(name.as_str(), "user" | "database" | "replication" | "options") {
            faults.push(format!("{path}: {name} is not a setting"));
        }
        if value.contains('\0') || value.len() > 1024 {
            faults.push(format!("{path}.{name}: at most 1024 bytes and no NUL"));
        }
    }
}

fn is_dns_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&text.len())
        && text.chars().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}
