//! What is remembered of a pool's figures between two looks, and what one look sees.
//!
//! The time comes in from outside, by the wall and by a clock that never leaps. All of it can be lost: the spans begin
//! anew, and a step takes longer.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use pgrouting_contract::report::{ProxyReport, Role, Rotation};
use pgrouting_crds::spec::PgRoutingPoolSpec;
use pgrouting_crds::spec::pooling::Traffic;
use pgrouting_crds::spec::split::WhenNoReplica;
use pgrouting_crds::stage::Stage;
use pgrouting_crds::status::rollout::{Forecast, RolloutStatus};
use pgrouting_crds::status::{ServerRole, ServerState};

use crate::observe::Observation;
use crate::position::{Ladder, Position};
use crate::rollout::compared::baseline_of;
use crate::rollout::figures::{Figures, Moment};
use crate::rollout::gates::readings;
use crate::rollout::reading::Reading;
use crate::rollout::sight::{Obstacle, Sight, Turn};
use crate::rollout::spans::{Collector, SpanKey, SpanRules, Spans};
use crate::rollout::stand::{ExternalValue, Stand};
use crate::rollout::text::span_text;
use crate::time::whole_seconds;

/// A clock that leaps by more is not believed.
const LEAP: Duration = Duration::from_secs(2);
/// How often figures are renewed that say nothing new.
const REFRESH_PERIOD: Duration = Duration::from_secs(60);
/// How often the forecast is.
const FORECAST_PERIOD: Duration = Duration::from_secs(600);
/// A forecast from fewer transactions is none.
const FORECAST_SAMPLES: u64 = 50;
/// Reasons that are shown in a forecast.
const FORECAST_REASONS: usize = 5;
/// Minutes over which the most traffic is looked for.
const LOAD_MINUTES: usize = 60;
/// Reasons that say that nobody knows what a statement is.
const UNKNOWN: [&str; 6] = ["unparsed", "unread", "no_catalog", "too_long", "not_utf8", "unknown_function"];
/// A moment in which the primary has changed, or a pause has ended, is over after so many periods.
const STABILIZATION: u32 = 2;

/// What is remembered.
#[derive(Debug, Default)]
pub struct Lookout {
    collector: Collector,
    primary: Option<(String, Option<u32>)>,
    /// Until when figures are looked past, and why.
    changed: Option<(Timestamp, Obstacle)>,
    last: Option<(Timestamp, Duration)>,
    refreshed: Option<Duration>,
    load: Load,
}

/// What there is to look at.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The spec.
    pub spec: &'a PgRoutingPoolSpec,
    /// The rollout as it is.
    pub rollout: &'a RolloutStatus,
    /// What the proxies say, by the name of the pod.
    pub reports: &'a [(&'a str, &'a ProxyReport)],
    /// What is known of pods and servers.
    pub observation: &'a Observation,
    /// How many pods there should be.
    pub replicas_wanted: i32,
    /// Whether the pods of an older template are all gone.
    pub is_updated: bool,
    /// What a Prometheus says.
    pub external: &'a BTreeMap<String, ExternalValue>,
    /// The time.
    pub now: Timestamp,
    /// How long this process has run, by a clock that never leaps.
    pub uptime: Duration,
}

/// What one look has seen, without whose turn it is.
#[derive(Debug, Clone)]
pub struct Seen {
    /// What each gate has to say.
    pub readings: Vec<Reading>,
    /// The spans.
    pub spans: Spans,
    /// What no step may begin with.
    pub obstacle: Option<Obstacle>,
    /// How far the clock has leapt.
    pub leap: Duration,
    /// Whether figures may be renewed.
    pub may_refresh: bool,
    /// The most transactions in a second of the last hour.
    pub peak_qps: i64,
}

impl Lookout {
    /// Looks.
    pub fn look(&mut self, view: &View<'_>) -> Seen {
        let leap = self.leap(view.now, view.uptime);
        let position = Position::of(view.rollout);
        let rules = &view.spec.rollout;
        self.load.take(view.reports, view.uptime);
        // A pool that is to stay at the beginning has nothing to be judged for.
        let is_at_rest =
            (position.stage, view.rollout.target_stage) == (Stage::PoolingOnly, Stage::PoolingOnly);
        let is_shaken = self.look_at_shocks(view);
        if is_shaken || !leap.is_zero() || is_at_rest {
            self.collector.forget();
        }
        let min_samples = u64::try_from(rules.min_samples).unwrap_or(0);
        let spans = if is_at_rest { Spans::default() } else { self.spans(view, position, min_samples) };
        let stand = Stand {
            position,
            gates: &rules.gates,
            min_samples,
            threshold: rules.failure_threshold,
            is_done: !view.rollout.is_under_way(),
            baseline: view.rollout.baseline.as_ref(),
            mirror_baseline: view.rollout.mirror_baseline.as_ref(),
            is_to_split: is_to_split(view.spec),
            needs_replica: view.spec.split.when_no_replica == WhenNoReplica::Fail,
            external: view.external,
            waiting: view.observation.waiting.as_deref(),
            known: &view.rollout.known_gates,
        };
        let readings = if is_at_rest { Vec::new() } else { readings(&stand, &spans) };
        let may_refresh = self.refreshed.is_none_or(|at| view.uptime.saturating_sub(at) >= REFRESH_PERIOD);
        if may_refresh {
            self.refreshed = Some(view.uptime);
        }
        Seen { readings, obstacle: self.obstacle(view), leap, may_refresh, peak_qps: self.load.peak(), spans }
    }

    fn spans(&mut self, view: &View<'_>, position: Position, min_samples: u64) -> Spans {
        let proxies: BTreeMap<String, Figures> =
            view.reports.iter().map(|(pod, report)| ((*pod).to_owned(), Figures::of(report))).collect();
        let key = SpanKey {
            position,
            attempt: view.rollout.attempt,
            policy: view.rollout.gate_policy_hash.clone(),
        };
        let rules = SpanRules { period: view.spec.rollout.evaluation_period.get(), min_samples };
        self.collector.look(key, &proxies, moment(view), rules, view.now)
    }

    /// How much further the wall's clock has gone than time has, or the same backward.
    fn leap(&mut self, now: Timestamp, uptime: Duration) -> Duration {
        let Some((then, since)) = self.last.replace((now, uptime)) else { return Duration::ZERO };
        let passed = uptime.saturating_sub(since);
        let shown = now.duration_since(then);
        let Ok(shown) = Duration::try_from(shown) else {
            // Backward: the spans begin anew, and what is waited for comes later by itself.
            self.collector.forget();
            return Duration::ZERO;
        };
        let leap = shown.saturating_sub(passed);
        if leap > LEAP { leap } else { Duration::ZERO }
    }

    /// Whether the primary is another one than the last time, or clients are held back, or either was so a moment ago.
    fn look_at_shocks(&mut self, view: &View<'_>) -> bool {
        let servers = &view.observation.servers;
        let primary = servers
            .iter()
            .filter(|server| server.role == ServerRole::Primary && server.state == ServerState::Up)
            .max_by_key(|server| server.timeline);
        if let Some(primary) = primary {
            let seen = (primary.name.clone(), primary.timeline);
            let is_other = self.primary.as_ref().is_some_and(|known| {
                known.0 != seen.0 || matches!((known.1, seen.1), (Some(then), Some(now)) if then != now)
            });
            if is_other {
                let why = Obstacle::PrimaryChanged(format!("{} has become the primary", seen.0));
                self.changed = Some((settled_after(view), why));
            }
            self.primary = Some(seen);
        }
        // What has waited for a pause to end says nothing of the servers.
        if view.spec.pooling.traffic == Traffic::Paused {
            let why = "spec.pooling.traffic is Paused, or was a moment ago".to_owned();
            self.changed = Some((settled_after(view), Obstacle::TrafficPaused(why)));
        }
        if self.changed.as_ref().is_some_and(|(until, _)| *until <= view.now) {
            self.changed = None;
        }
        self.changed.is_some()
    }

    fn obstacle(&self, view: &View<'_>) -> Option<Obstacle> {
        if view.reports.is_empty() {
            return Some(Obstacle::Silent);
        }
        if let Some((_, obstacle)) = &self.changed {
            return Some(obstacle.clone());
        }
        let observation = view.observation;
        let (applied, total) = observation.applied_of_total();
        let ready = observation.ready_replicas;
        let why = if applied < total {
            format!("{applied} of {total} proxies run the document")
        } else if ready != view.replicas_wanted || observation.replicas != view.replicas_wanted {
            format!("{ready} of {} proxies are ready", view.replicas_wanted)
        } else if !view.is_updated {
            "pods are being replaced".to_owned()
        } else {
            return None;
        };
        Some(Obstacle::Deployment(why))
    }
}

/// When figures count again after what has shaken them.
fn settled_after(view: &View<'_>) -> Timestamp {
    let pause = view.spec.rollout.evaluation_period.get() * STABILIZATION;
    view.now.checked_add(pause).unwrap_or(Timestamp::MAX)
}

/// Whether the last step of Split is a share of something.
fn is_to_split(spec: &PgRoutingPoolSpec) -> bool {
    let ladder = Ladder::of(spec);
    ladder.rung(ladder.end_of(Stage::Split)).position.split_percent > 0
}

/// What is true of a pool now.
fn moment(view: &View<'_>) -> Moment {
    let takes_reads = |name: &str| {
        let servers = &view.observation.servers;
        servers.iter().any(|server| {
            server.name == name && server.role == ServerRole::Replica && server.state == ServerState::Up
        })
    };
    let servers = || view.reports.iter().flat_map(|(_, report)| &report.servers);
    let replicas = servers().filter(|server| server.role == Role::Replica && server.rotation == Rotation::In);
    let lag_ms_max =
        replicas.filter(|server| takes_reads(&server.name)).filter_map(|server| server.lag_ms).max();
    let (active, max) = servers()
        .filter(|server| server.role == Role::Primary && server.rotation == Rotation::In)
        .fold((0_u64, 0_u64), |(active, max), server| {
            (active + u64::from(server.connections_active), max + u64::from(server.connections_max))
        });
    let up = view.observation.servers.iter().filter(|server| takes_reads(&server.name));
    Moment {
        lag_ms_max,
        replicas: up.count(),
        primary_use_percent: (active * 100).checked_div(max),
        proxies: view.reports.len(),
    }
}

impl Seen {
    /// With whose turn it is, as the decision wants it.
    #[must_use]
    pub fn sight(&self, rollout: &RolloutStatus, turn: Turn, now: Timestamp) -> Sight<'_> {
        let position = Position::of(rollout);
        let of_split = &self.spans.split;
        let of_mirror = &self.spans.mirror;
        Sight {
            readings: &self.readings,
            were_all_over: self.spans.were_all_over,
            obstacle: self.obstacle.clone(),
            turn,
            baseline: (of_split.is_over && position.split_percent < 100)
                .then(|| baseline_of(&of_split.figures.measures.control, of_split, now))
                .flatten(),
            mirror_baseline: (of_mirror.is_over && position.mirror_percent < 100)
                .then(|| baseline_of(&of_mirror.figures.measures.unmirrored, of_mirror, now))
                .flatten(),
            leap: self.leap,
            may_refresh: self.may_refresh,
            now,
        }
    }
}

/// Transactions of each pod, with the process that counted them.
type Counted = BTreeMap<String, (String, u64)>;

/// The most traffic of the last hour.
#[derive(Debug, Default)]
struct Load {
    /// When it was last looked at, and what each process had counted.
    last: Option<(Duration, Counted)>,
    /// The most of each minute, the newest last.
    minutes: VecDeque<(Duration, u64)>,
}

impl Load {
    fn take(&mut self, reports: &[(&str, &ProxyReport)], now: Duration) {
        let counted: Counted = reports
            .iter()
            .map(|(pod, report)| {
                ((*pod).to_owned(), (report.measures.process.clone(), report.totals.transactions))
            })
            .collect();
        if let Some((then, before)) = &self.last {
            let passed = now.saturating_sub(*then);
            if passed < Duration::from_secs(1) {
                return;
            }
            let came: u64 = counted
                .iter()
                .map(|(pod, (process, count))| match before.get(pod) {
                    Some((known, counted)) if known == process => count.saturating_sub(*counted),
                    Some(_) | None => 0,
                })
                .sum();
            let qps = u128::from(came) * 1000 / passed.as_millis().max(1);
            let qps = u64::try_from(qps).unwrap_or(u64::MAX);
            match self.minutes.back_mut() {
                Some((begun, most)) if now.saturating_sub(*begun) < Duration::from_secs(60) => {
                    *most = qps.max(*most)
                }
                Some(_) | None => self.minutes.push_back((now, qps)),
            }
            while self.minutes.len() > LOAD_MINUTES {
                self.minutes.pop_front();
            }
        }
        self.last = Some((now, counted));
    }

    fn peak(&self) -> i64 {
        let peak = self.minutes.iter().map(|(_, most)| *most).max().unwrap_or(0);
        i64::try_from(peak).unwrap_or(i64::MAX)
    }
}

/// What the split would do, from the sample that proxies judge at the stage PoolingOnly; as it was while it is new enough.
#[must_use]
pub fn forecast(
    before: Option<&Forecast>,
    reports: &[(&str, &ProxyReport)],
    now: Timestamp,
) -> Option<Forecast> {
    let is_new = |known: &&Forecast| now.duration_since(known.taken_at.0).unsigned_abs() < FORECAST_PERIOD;
    if let Some(known) = before.filter(is_new) {
        return Some(known.clone());
    }
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut stale = 0_u64;
    for (_, report) in reports {
        for (reason, count) in &report.split.forecast {
            let sum = counts.entry(reason).or_default();
            *sum = sum.saturating_add(*count);
        }
        stale = stale.saturating_add(report.split.forecast_stale);
    }
    let total: u64 = counts.values().sum();
    if total < FORECAST_SAMPLES {
        return before.cloned();
    }
    let of = |names: &[&str]| names.iter().filter_map(|name| counts.get(name)).sum::<u64>();
    let reads = of(&["read", "read_only_transaction"]);
    let percent = |count: u64, of: u64| {
        i32::try_from((u128::from(count) * 100).checked_div(u128::from(of)).unwrap_or(0)).unwrap_or(100)
    };
    let mut others: Vec<_> =
        counts.iter().filter(|(reason, _)| !["read", "read_only_transaction"].contains(reason)).collect();
    others.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), **reason));
    let shown = others.into_iter().take(FORECAST_REASONS);
    let top_reasons = shown.map(|(reason, count)| format!("{reason} {} %", percent(*count, total))).collect();
    let renewed = Forecast {
        read_share_percent: percent(reads, total),
        unknown_share_percent: percent(of(&UNKNOWN), total),
        stale_share_percent: percent(stale, reads),
        top_reasons,
        samples: i64::try_from(total).unwrap_or(i64::MAX),
        taken_at: whole_seconds(now),
    };
    let is_same =
        |known: &&Forecast| Forecast { taken_at: known.taken_at.clone(), ..renewed.clone() } == **known;
    Some(before.filter(is_same).cloned().unwrap_or(renewed))
}

/// How long until the first step could be judged at this pace, for the message of a pool that has yet to begin it.
#[must_use]
pub fn first_step_text(spec: &PgRoutingPoolSpec, forecast: &Forecast, qps: i64) -> Option<String> {
    let step = spec.rollout.split_steps.first()?;
    let share = i64::from(step.percent) * i64::from(forecast.read_share_percent);
    let reads_per_10k_seconds = qps.saturating_mul(share);
    let needed = i64::from(spec.rollout.min_samples);
    let seconds = needed.saturating_mul(10_000).checked_div(reads_per_10k_seconds)?;
    let span = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    (span > spec.rollout.evaluation_period.get()).then(|| {
        format!(
            "at {qps} transactions a second the step of {} % needs {} for its {needed} reads",
            step.percent,
            span_text(span)
        )
    })
}

#[cfg(test)]
mod tests;
