//! The proxies and the PostgreSQL servers, with what the proxies said of them.

use pgrouting_contract::report::{ProxyReport, ServerReport};
use pgrouting_crds::status::{
    ConfigStatus, OutOfSyncPod, PgRoutingPoolStatus, ServerRole, ServerState, ServerStatus,
};

use crate::pods::{PodState, Reports};
use crate::render::facts::Facts;
use crate::table::{Cell, Paint, Table, Tone};
use crate::text::{bytes_text, time_text};

/// The proxies and servers in short.
pub fn facts(facts: &mut Facts, status: &PgRoutingPoolStatus, reports: &Reports) {
    if let Some(proxies) = &status.proxies {
        let config = match &status.config {
            Some(ConfigStatus { short_hash, pods_applied, pods_total, .. }) => {
                format!(", {pods_applied} of {pods_total} run config {short_hash}")
            }
            None => String::new(),
        };
        facts.add("Proxies", format!("{} ready{config}", proxies.summary));
    }
    if let Err(why) = reports {
        facts.more(format!("not asked: {why}"));
    }
    if let Some(backends) = &status.backends {
        let primary = backends.primary.as_deref().unwrap_or("none");
        facts.add("Servers", format!("primary {primary}, {} replicas up", backends.replicas_summary));
    }
}

/// The proxies: those that were asked, or those that the status names.
#[must_use]
pub fn proxies(status: &PgRoutingPoolStatus, reports: &Reports, paint: Paint) -> String {
    let known: &[OutOfSyncPod] = status.proxies.as_ref().map_or(&[], |proxies| &proxies.out_of_sync);
    let mut table = Table::new(&["PROXY", "READY", "CLIENTS", "ACTIVE", "WAITING", "CONFIG"]);
    for one in reports.iter().flatten() {
        let tone = if one.pod.state == PodState::Ready { Tone::Good } else { Tone::Warning };
        let figure = |of: fn(&ProxyReport) -> u64| {
            Cell::from(one.answer.as_ref().map_or_else(|_| String::new(), |report| of(report).to_string()))
        };
        let out_of_sync = known.iter().find(|pod| pod.pod == one.pod.name);
        table.row(vec![
            one.pod.name.as_str().into(),
            Cell::toned(one.pod.state.as_str(), tone),
            figure(|report| report.clients.connected),
            figure(|report| report.clients.active),
            figure(|report| report.clients.waiting),
            out_of_sync.map_or_else(|| Cell::from("in sync"), |pod| Cell::toned(&pod.reason, Tone::Bad)),
        ]);
        if let Err(why) = &one.answer {
            table.line(format!("not asked: {why}"));
        }
        if let Some(pod) = out_of_sync {
            table.line(format!("{} (since {})", pod.message, time_text(pod.since.0)));
        }
    }
    for pod in known {
        if reports.iter().flatten().all(|one| one.pod.name != pod.pod) {
            let dashes = ["", "", "", ""].map(Cell::from);
            let mut row = vec![Cell::from(pod.pod.as_str())];
            row.extend(dashes);
            row.push(Cell::toned(&pod.reason, Tone::Bad));
            table.row(row);
            table.line(format!("{} (since {})", pod.message, time_text(pod.since.0)));
        }
    }
    if table.is_empty() { String::new() } else { table.text(paint) }
}

/// The servers, with their lag and connections where proxies could be asked.
#[must_use]
pub fn servers(status: &PgRoutingPoolStatus, reports: &Reports, paint: Paint) -> String {
    let Some(backends) = &status.backends else { return String::new() };
    let reports: Vec<&ProxyReport> =
        reports.iter().flatten().filter_map(|one| one.answer.as_ref().ok()).collect();
    let mut table = Table::new(&["SERVER", "ROLE", "STATE", "LAG", "CONNECTIONS", "ADDRESS"]);
    for server in &backends.servers {
        let ServerStatus { name, address, role, state, reason, since: _ } = server;
        let views: Vec<&ServerReport> = reports
            .iter()
            .flat_map(|report| &report.servers)
            .filter(|view| view.name == *name && view.address == *address)
            .collect();
        table.row(vec![
            name.as_str().into(),
            role_word(*role).into(),
            state_cell(*state),
            lag(*role, &views).into(),
            connections(&views).into(),
            address.as_str().into(),
        ]);
        if let Some(reason) = reason {
            table.line(reason);
        }
    }
    if table.is_empty() { String::new() } else { table.text(paint) }
}

/// The largest lag that a proxy sees.
fn lag(role: ServerRole, views: &[&ServerReport]) -> String {
    match role {
        ServerRole::Primary => String::new(),
        ServerRole::Replica | ServerRole::Unknown => {
            let millis = views.iter().filter_map(|view| view.lag_ms).max();
            let bytes = views.iter().filter_map(|view| view.lag_bytes).max();
            match (millis, bytes) {
                (None, None) => String::new(),
                (Some(millis), None) => format!("{millis} ms"),
                (None, Some(bytes)) => bytes_text(bytes),
                (Some(millis), Some(bytes)) => format!("{millis} ms, {}", bytes_text(bytes)),
            }
        }
    }
}

/// Connections that clients hold, of those that the proxies may have together.
fn connections(views: &[&ServerReport]) -> String {
    if views.is_empty() {
        return String::new();
    }
    let sum = |of: fn(&ServerReport) -> u32| views.iter().map(|view| u64::from(of(view))).sum::<u64>();
    let active = sum(|view| view.connections_active);
    let idle = sum(|view| view.connections_idle);
    format!("{active} in use, {idle} idle, {} at most", sum(|view| view.connections_max))
}

const fn role_word(role: ServerRole) -> &'static str {
    match role {
        ServerRole::Primary => "Primary",
        ServerRole::Replica => "Replica",
        ServerRole::Unknown => "Unknown",
    }
}

fn state_cell(state: ServerState) -> Cell {
    match state {
        ServerState::Up => Cell::toned("Up", Tone::Good),
        ServerState::Down => Cell::toned("Down", Tone::Bad),
        ServerState::Lagging => Cell::toned("Lagging", Tone::Warning),
        ServerState::Ejected => Cell::toned("Ejected", Tone::Warning),
        ServerState::Fenced => Cell::toned("Fenced", Tone::Bad),
    }
}
