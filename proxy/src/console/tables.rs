//! What SHOW shows: for each of its names the columns, and the rows of this moment.

use crate::console::command::Show;
use crate::console::rows::{Column, Table};
use crate::console::sources::Sources;

pub mod databases;
pub mod pools;
pub mod process;
pub mod settings;
pub mod sockets;
pub mod stats;

/// The columns of a table; none where it is no table.
#[must_use]
pub const fn columns(show: Show) -> &'static [Column] {
    match show {
        Show::Stats => &stats::STATS,
        Show::StatsTotals => &stats::TOTALS_BY_DATABASE,
        Show::StatsAverages => &stats::AVERAGES_BY_DATABASE,
        Show::Totals => &stats::TOTALS,
        Show::Pools => &pools::POOLS,
        Show::Users => &pools::USERS,
        Show::Lists => &pools::LISTS,
        Show::Databases => &databases::DATABASES,
        Show::Hosts => &databases::HOSTS,
        Show::Clients | Show::Servers => &sockets::CONNECTIONS,
        Show::Sockets | Show::ActiveSockets => &sockets::SOCKETS,
        Show::Config => &settings::CONFIG,
        Show::Mem => &process::MEM,
        Show::State => &process::STATE,
        Show::Version => &process::VERSION,
        Show::Peers => &process::PEERS,
        Show::PeerPools => &process::PEER_POOLS,
        Show::DnsHosts => &process::DNS_HOSTS,
        Show::DnsZones => &process::DNS_ZONES,
        Show::Mirror => &process::MIRROR,
        Show::MirrorDiffs => &process::MIRROR_DIFFS,
        Show::MirrorReport => &process::MIRROR_REPORT,
        Show::Fds | Show::Help => &[],
    }
}

/// The rows of a table.
#[must_use]
pub fn table(show: Show, sources: &Sources) -> Table {
    let rows = match show {
        Show::Stats => stats::stats(sources),
        Show::StatsTotals => stats::totals_by_database(sources),
        Show::StatsAverages => stats::averages_by_database(sources),
        Show::Totals => stats::totals(sources),
        Show::Pools => pools::pools(sources),
        Show::Users => pools::users(sources),
        Show::Lists => pools::lists(sources),
        Show::Databases => databases::databases(sources),
        Show::Hosts => databases::hosts(sources),
        Show::Clients => sockets::clients(sources),
        Show::Servers => sockets::servers(sources),
        Show::Sockets => sockets::sockets(sources),
        Show::ActiveSockets => sockets::active_sockets(sources),
        Show::Config => settings::config(sources),
        Show::Mem => process::mem(),
        Show::State => process::state(sources),
        Show::Version => process::version(),
        Show::Peers => process::peers(sources),
        Show::Mirror => process::mirror(sources),
        Show::MirrorDiffs => process::mirror_diffs(sources),
        Show::MirrorReport => process::mirror_report(sources),
        Show::PeerPools | Show::DnsHosts | Show::DnsZones | Show::Fds | Show::Help => Vec::new(),
    };
    Table { columns: columns(show), rows }
}
