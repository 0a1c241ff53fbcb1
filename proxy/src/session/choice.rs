//! What a session decides before it takes a connection, and what it notes of that.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::stage::Stage;
use tokio::time::{Instant, sleep};

use crate::classify::verdict::{Reason, Verdict};
use crate::pool::lease::Lease;
use crate::route::{Access, Aim, Side, Why};
use crate::server::settings::APPLICATION_NAME;
use crate::session::client::Client;
use crate::session::judge::{Segment, first_text, shape};
use crate::session::routing::{Decision, Gate};
use crate::session::tenancy::Tenancy;
use crate::session::tie::Tie;
use crate::transaction::PinReason;

/// How long a session waits for the position that covers what it has written.
const POSITION_WITHIN: Duration = Duration::from_secs(1);

/// A read so long after its session's last write is forecast to find it on a replica.
const STALE_WITHIN: Duration = Duration::from_millis(100);

/// The pause before it looks again.
const POSITION_PAUSE: Duration = Duration::from_millis(5);

/// Decides where the transaction goes that begins with the request at hand.
pub fn decide(client: &mut Client, tenancy: &mut Tenancy) -> Decision {
    tenancy.look_at_view();
    let is_split = tenancy.view().active.config.stage >= Stage::Split;
    let is_judged = is_split || client.routing.is_next_sampled();
    let decision = if is_judged { judge(client, tenancy, is_split) } else { unjudged(tenancy.access) };
    tenancy.aim = decision.aim;
    decision
}

fn unjudged(access: Access) -> Decision {
    let side = if access == Access::ReadOnly { Side::Replica } else { Side::Primary };
    let why = if access == Access::Routed { Why::Stage } else { Why::Port };
    Decision { aim: Aim { side, ..Aim::PRIMARY }, why, ..Decision::UNKNOWN }
}

fn judge(client: &mut Client, tenancy: &Tenancy, is_split: bool) -> Decision {
    let split = &tenancy.view().active.config.split;
    client.routing.judge.cache_bytes = split.verdict_cache_bytes;
    client.routing.judge.refresh();
    let segment = client.routing.judge.segment(&client.inbox, &client.statements);
    let mut segment = segment.unwrap_or(Segment::UNREAD);
    let request = client.inbox.get(..segment.length).unwrap_or_default();
    if client.routing.is_put_off() {
        let is_movable = shape(request, &client.statements).is_movable;
        if segment.verdict != Verdict::Read || !is_movable {
            segment.verdict = Verdict::Primary(Reason::Transaction);
        }
    }
    let routing = &mut client.routing;
    let decision = routing.decide(tenancy.view(), tenancy.access, &segment, request, &client.statements);
    if !is_split {
        forecast(client, tenancy, &segment);
    } else if decision.why == Why::Freshness {
        note_site(client, tenancy);
    } else if decision.aim.side == Side::Replica && tenancy.access == Access::Routed && !routing.is_put_off()
    {
        if split.rescue {
            routing.rescue.keep(&segment, request, &client.statements);
        } else {
            routing.rescue.keep_to_tell(&segment, request);
        }
    }
    decision
}

/// Counts what a transaction is that is not routed.
fn forecast(client: &mut Client, tenancy: &Tenancy, segment: &Segment) {
    let metrics = &tenancy.worker.metrics;
    let view = tenancy.view();
    let why = if segment.is_unread { Why::Unread } else { Why::Verdict(segment.verdict) };
    metrics.forecast.count(why.index());
    let reads = why == Why::Verdict(Verdict::Read);
    let freshness = &mut client.routing.freshness;
    // Positions are not asked for again and again where nothing is routed: those of after a while are not known.
    let is_stale = freshness.has_written_within(STALE_WITHIN) && freshness.floor_at(view).is_none();
    if reads && view.topology.replicas().next().is_some() && is_stale {
        metrics.forecast_stale.add_one();
        note_site(client, tenancy);
    }
}

/// Notes a read that has to stay on the primary because its session has written.
fn note_site(client: &Client, tenancy: &Tenancy) {
    let application_name = client.state.settings.value(APPLICATION_NAME).unwrap_or_default();
    if let Some(sql) = first_text(&client.inbox, &client.statements) {
        tenancy.context.sites.count(application_name, sql);
    }
}

/// Notes where the transaction goes now that there is a connection for it.
pub fn note_route(client: &mut Client, tenancy: &Tenancy, decision: &Decision) {
    let is_at_primary = tenancy.is_at_primary();
    // A read that the primary answers in a replica's place can be run again like any other.
    let is_read = decision.verdict == Verdict::Read && !client.routing.is_put_off();
    let is_watched =
        tenancy.access == Access::Routed && decision.aim.side == Side::Replica && (!is_at_primary || is_read);
    tenancy.worker.metrics.count_route(is_at_primary, decision.why);
    let routing = &mut client.routing;
    // At a stage that does not split it is always the primary, whose name need not be kept.
    let name = (decision.why != Why::Stage).then(|| tenancy.server_name());
    routing.last = Some((name, decision.why));
    routing.begin(is_watched, decision);
    if !is_watched {
        routing.rescue.disarm();
    }
    let is_kept = is_watched && routing.rescue.is_armed();
    routing.rescue.begin(is_kept);
}

/// Notes that the transaction runs on the connection that the session keeps.
pub fn note_kept(client: &mut Client, tenancy: &mut Tenancy, lease: &Lease, why: Why) {
    tenancy.stand_at(lease);
    let routing = &mut client.routing;
    routing.gate = Gate::default();
    routing.rescue.disarm();
    routing.rescue.begin(false);
    routing.last = Some((Some(Arc::clone(&lease.pool().name)), why));
    tenancy.worker.metrics.count_route(tenancy.is_at_primary(), why);
}

/// Whether a session that keeps a connection waits for a whole request before it uses it, since that may run elsewhere.
pub fn is_loose(client: &Client, tenancy: &mut Tenancy, reason: PinReason) -> bool {
    tenancy.look_at_view();
    let is_loose = reason != PinReason::SessionMode
        && tenancy.access == Access::Routed
        && tenancy.view().active.config.stage >= Stage::Split
        && client.routing.tie.as_ref().is_some_and(|tie| *tie != Tie::Fast);
    // The rest of a batch that failed elsewhere must not reach the connection.
    is_loose || client.is_skipping
}

/// Waits until the position is known that covers what the session has written, for a while.
pub async fn await_position(client: &mut Client, tenancy: &mut Tenancy) {
    tenancy.look_at_view();
    if tenancy.view().active.config.stage < Stage::Split {
        // Nothing is noted there.
        client.routing.freshness.note_written(tenancy.view());
    }
    let deadline = Instant::now() + POSITION_WITHIN;
    loop {
        tenancy.look_at_view();
        let view = tenancy.view();
        let _ = client.routing.freshness.floor_at(view);
        if client.routing.freshness.token().is_some() || Instant::now() >= deadline {
            return;
        }
        sleep(POSITION_PAUSE).await;
    }
}
