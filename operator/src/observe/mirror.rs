//! What the proxies say together of the copied traffic.

use jiff::Timestamp;
use pgrouting_contract::config::ProxyConfig;
use pgrouting_contract::mirror::{MirrorReport, MirrorState, differing};
use pgrouting_contract::report::ProxyReport;
use pgrouting_contract::stage::Stage;

/// What the proxies say together of the copied traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MirrorView {
    /// Whether the document asks for copies.
    pub is_wanted: bool,
    /// The worst state of any.
    pub state: MirrorState,
    /// A failure to run a transaction there, of a proxy that gave it up where there is one.
    pub message: String,
    /// Transactions of sessions that are copied.
    pub offered: u64,
    /// Those that were run there to their end.
    pub mirrored: u64,
    /// Those that were to be run there and were not.
    pub dropped: u64,
    /// Those that are not of the kind that is copied.
    pub skipped: u64,
    /// Requests whose answers were compared.
    pub compared: u64,
    /// Those whose answers differ.
    pub differing: u64,
    /// Errors there that were none here.
    pub errors: u64,
    /// The time that compared requests took here, in microseconds.
    pub source_micros: u64,
    /// The same there.
    pub mirror_micros: u64,
    /// Since when rows there may differ, at the earliest.
    pub diverged_since: Option<Timestamp>,
}

/// Where the document sends copies, as the proxies write it.
#[must_use]
pub fn mirror_target(config: &ProxyConfig) -> Option<String> {
    config.mirror.as_ref().map(|mirror| format!("{}:{}", mirror.host, mirror.port))
}

/// Puts the reports together of those proxies that send to where the document says, or have sent nothing yet; nothing where
/// there is none.
#[must_use]
pub fn mirror_view(config: &ProxyConfig, reports: &[&ProxyReport]) -> Option<MirrorView> {
    let target = mirror_target(config)?;
    let all = reports.iter().filter_map(|report| report.mirror.as_ref());
    let all: Vec<_> = all.filter(|mirror| mirror.target == target || mirror.target.is_empty()).collect();
    let state = all.iter().map(|mirror| mirror.state).max_by_key(|state| badness(*state))?;
    let sum = |of: fn(&MirrorReport) -> u64| all.iter().map(|mirror| of(mirror)).fold(0, u64::saturating_add);
    let percent = config.mirror.as_ref().map_or(0, |mirror| mirror.percent);
    Some(MirrorView {
        is_wanted: config.stage == Stage::Mirror && percent > 0,
        state,
        message: message(&all, state),
        offered: sum(|mirror| mirror.offered),
        mirrored: sum(|mirror| mirror.mirrored),
        dropped: sum(|mirror| total(mirror.dropped.values())),
        skipped: sum(|mirror| total(mirror.skipped.values())),
        compared: sum(|mirror| total(mirror.verdicts.values())),
        differing: sum(|mirror| differing(&mirror.verdicts)),
        errors: sum(|mirror| total(mirror.errors.values())),
        source_micros: sum(|mirror| mirror.source_micros),
        mirror_micros: sum(|mirror| mirror.mirror_micros),
        diverged_since: all.iter().filter_map(|mirror| mirror.diverged_since.as_ref()?.parse().ok()).min(),
    })
}

fn badness(state: MirrorState) -> u8 {
    match state {
        MirrorState::Running => 0,
        MirrorState::Inactive => 1,
        MirrorState::Broken => 2,
    }
}

fn total<'a>(counts: impl Iterator<Item = &'a u64>) -> u64 {
    counts.copied().fold(0, u64::saturating_add)
}

/// The same one of several, whatever the order of the answers.
fn message(all: &[&MirrorReport], worst: MirrorState) -> String {
    let of = |state: Option<MirrorState>| {
        let told = all.iter().filter(|mirror| state.is_none_or(|state| mirror.state == state));
        told.map(|mirror| mirror.message.as_str()).filter(|message| !message.is_empty()).min()
    };
    of(Some(worst)).or_else(|| of(None)).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
