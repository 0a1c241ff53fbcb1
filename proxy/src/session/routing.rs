//! Where a session's transactions go: what it has asked for, what it may read, and how far a server of reads may be
//! sent what follows in the same write.

use std::sync::Arc;

use pgrouting_contract::config::PoolMode;
use pgrouting_contract::split::{Cohort, SplitConfig, Transactions, WhenNoReplica};
use pgrouting_contract::stage::Stage;

use crate::classify::commands::{CAUSAL_TOKEN, RoleValue};
use crate::classify::token::Token;
use crate::classify::verdict::{Reason, Verdict};
use crate::fleet::View;
use crate::lot::Lot;
use crate::mirror::hub::Hub;
use crate::route::{Access, Aim, Group, Question, ServerRole, Side, Why, admits, group, side};
use crate::server::settings::Settings;
use crate::session::freshness::Freshness;
use crate::session::judge::{Judge, Segment, shape};
use crate::session::named_commands::NamedCommands;
use crate::session::prepared::ClientStatements;
use crate::session::rescue::Rescue;
use crate::session::tie::Tie;

/// Settings of a session that say what `SET SERVER ROLE` says, the first that is there; the second is PgDog's.
const ROLE_SETTINGS: [&str; 2] = ["pgrouting.role", "pgdog.role"];

/// What a session's settings ask for.
#[derive(Debug, Clone, Copy, Default)]
struct Wishes {
    role: ServerRole,
    is_serializable: bool,
    is_read_committed: bool,
}

/// Where a transaction went, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// What it wants of the servers.
    pub aim: Aim,
    /// Why.
    pub why: Why,
    /// What its first request was judged to be.
    pub verdict: Verdict,
    /// What it is compared with.
    pub group: Option<Group>,
}

impl Decision {
    /// The session keeps a connection: the request runs there, or on a replica without having the primary instead.
    pub(super) fn tie(&mut self, lets_go: bool, view: &View) {
        if view.topology.replicas().next().is_none() {
            (self.aim, self.why) = (Aim::PRIMARY, Why::NoReplica);
        } else if lets_go {
            (self.aim.falls_back, self.aim.counts_primary) = (false, false);
        } else {
            (self.aim, self.why) = (Aim::PRIMARY, Why::Pinned);
        }
    }

    /// Nothing is known of the request: it may do anything.
    pub const UNKNOWN: Self = Self {
        aim: Aim::PRIMARY,
        why: Why::Pinned,
        verdict: Verdict::Primary(Reason::Unparsed),
        group: None,
    };
}

/// For the forecast the transactions of a session are taken in runs of so many.
const FORECAST_RUN: u16 = 16;

/// One run in so many is judged.
const FORECAST_ONE_RUN_IN: u16 = 64;

/// A session's part in routing.
#[derive(Debug)]
pub struct Routing {
    /// Judges its statements.
    pub judge: Judge,
    /// What the client has asked for by a command.
    pub role: Option<ServerRole>,
    /// Settings of the client that count, and the settings that they were read from.
    wishes: Option<(Arc<Settings>, Wishes)>,
    /// The commands that it has prepared.
    pub prepared: Option<Box<NamedCommands>>,
    /// A transaction that has begun for the client and at no server yet: what begins it.
    put_off: Option<&'static str>,
    /// What begins the transaction that is open at a server that only takes reads, so that it can move.
    movable: Option<&'static str>,
    /// Whether the client's reads may go to the primary too; as the pool says where it has said nothing.
    pub primary_reads: Option<bool>,
    /// How old what it reads may be.
    pub freshness: Freshness,
    /// How the last transaction went: the server's name, the primary's where there is none, and why.
    pub last: Option<(Option<Arc<str>>, Why)>,
    /// What is kept to run a request on the primary that a replica refuses.
    pub rescue: Rescue,
    /// What may be sent to the server of this exchange.
    pub gate: Gate,
    /// What ties the session to the connection that it keeps, if it keeps one.
    pub tie: Option<Tie>,
    /// What is copied, for those who ask.
    pub mirror: Arc<Hub>,
    /// The user.
    user: Arc<str>,
    /// Says whether it is in the share that is split.
    lot: Lot,
    /// Its transactions so far in a pool that does not split.
    unrouted: u16,
}

/// What may be sent to a server that only takes reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Gate {
    /// The server only takes reads, so that every request is looked at.
    pub is_watched: bool,
    /// The request that is being sent may go there.
    pub is_open: bool,
    /// A READ ONLY transaction is open, or about to be, and all of it goes there.
    pub is_in_block: bool,
}

impl Gate {
    /// What passes is proved to do nothing to its session.
    #[must_use]
    pub const fn is_proved(self) -> bool {
        self.is_watched && !self.is_in_block
    }
}

impl Routing {
    /// At the beginning of a session.
    #[must_use]
    pub fn new(judge: Judge, user: &str, mirror: Arc<Hub>) -> Self {
        Self {
            mirror,
            judge,
            role: None,
            wishes: None,
            prepared: None,
            put_off: None,
            movable: None,
            primary_reads: None,
            freshness: Freshness::default(),
            last: None,
            rescue: Rescue::default(),
            gate: Gate::default(),
            tie: None,
            user: user.into(),
            lot: Lot::draw(),
            unrouted: 0,
        }
    }

    /// Reads the settings that count, where they have changed.
    pub fn look_at_settings(&mut self, settings: &Arc<Settings>) {
        if self.wishes.as_ref().is_some_and(|(seen, _)| Arc::ptr_eq(seen, settings)) {
            return;
        }
        self.freshness.token_setting = settings.value(CAUSAL_TOKEN).and_then(Token::parse);
        let role = ROLE_SETTINGS.iter().find_map(|name| settings.value(name)).and_then(RoleValue::named);
        let isolation = settings.value("default_transaction_isolation");
        let wishes = Wishes {
            role: match role {
                Some(RoleValue::Primary) => ServerRole::Primary,
                Some(RoleValue::Replica) => ServerRole::Replica,
                Some(RoleValue::Any) => ServerRole::Any,
                Some(RoleValue::Auto | RoleValue::Default) | None => ServerRole::Auto,
            },
            is_serializable: isolation.is_some_and(|level| level.eq_ignore_ascii_case("serializable")),
            is_read_committed: isolation.is_none_or(|level| level.eq_ignore_ascii_case("read committed")),
        };
        self.wishes = Some((Arc::clone(settings), wishes));
    }

    /// What the client has asked for: by a command, else by a setting.
    #[must_use]
    pub fn role(&self) -> ServerRole {
        self.role.unwrap_or_else(|| self.wishes().role)
    }

    fn wishes(&self) -> Wishes {
        self.wishes.as_ref().map_or_else(Wishes::default, |(_, wishes)| *wishes)
    }

    /// Where the transaction that begins with this request goes.
    pub fn decide(
        &mut self,
        view: &View,
        access: Access,
        segment: &Segment,
        request: &[u8],
        statements: &ClientStatements,
    ) -> Decision {
        let is_rescued = self.rescue.take_rescued();
        if let Some(token) = self.freshness.token_setting.take() {
            self.freshness.take_token(token, view);
        }
        let mut decision = self.weigh(view, access, segment, is_rescued);
        if self.tie.is_some() && decision.aim.side != Side::Primary {
            decision.tie(self.lets_go(segment, request, statements), view);
        }
        decision
    }

    /// Whether the tie of the session, if there is one, lets a request run elsewhere.
    fn lets_go(&self, segment: &Segment, request: &[u8], statements: &ClientStatements) -> bool {
        let Some(tie) = &self.tie else { return true };
        segment.verdict == Verdict::Read
            && segment.runs
            && tie.lets_request_go(request, statements, self.judge.catalog().map(|catalog| &**catalog))
    }

    pub(super) fn weigh(
        &mut self,
        view: &View,
        access: Access,
        segment: &Segment,
        is_rescued: bool,
    ) -> Decision {
        let config = &view.active.config;
        let split = &config.split;
        let question = Question {
            access,
            is_split: config.stage >= Stage::Split,
            is_in_cohort: self.is_in_cohort(split),
            is_primary_user: self.is_primary_user(split),
            is_exclusive: config.pooling.mode == PoolMode::Session,
            is_serializable: self.wishes().is_serializable,
            role: self.role(),
            hint: segment.hint,
            verdict: segment.verdict,
            is_learned: segment.is_learned,
            is_rescued,
        };
        let (mut side, mut why) = side(&question);
        // Whatever follows a Flush belongs to the same transaction and is not known yet.
        let is_unread = segment.is_unread || (segment.is_open && (segment.runs || self.is_put_off()));
        let is_routed = access == Access::Routed;
        // What either group has and the other cannot have is in none: only the lot may tell them apart.
        let is_compared = !is_unread && self.tie.is_none() && !self.is_put_off();
        let group = group(&question, why).filter(|_| is_compared);
        if is_unread && is_routed && side == Side::Replica {
            (side, why) = (Side::Primary, Why::Unread);
        }
        let mut aim = Aim {
            side,
            falls_back: is_routed && split.when_no_replica == WhenNoReplica::UsePrimary,
            counts_primary: is_routed && self.counts_primary(split),
            ..Aim::PRIMARY
        };
        if side == Side::Replica && is_routed {
            if view.topology.replicas().next().is_none() {
                why = if aim.falls_back { Why::NoReplica } else { why };
            } else {
                match self.freshness.floor_for(view, split) {
                    Some(floor) => aim.floor = floor,
                    None => (aim.side, why) = (Side::Primary, Why::Freshness),
                }
            }
        }
        Decision { aim, why, verdict: segment.verdict, group }
    }

    /// Who the session is.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    fn is_primary_user(&self, split: &SplitConfig) -> bool {
        split.primary_users.iter().any(|name| **name == *self.user)
    }

    fn is_in_cohort(&self, split: &SplitConfig) -> bool {
        let lot = match split.cohort {
            Cohort::Session => self.lot,
            Cohort::Transaction if split.percent >= 100 => return true,
            Cohort::Transaction => Lot::draw(),
        };
        lot.is_in(split.percent, split.salt)
    }

    fn counts_primary(&self, split: &SplitConfig) -> bool {
        self.role() == ServerRole::Any || self.primary_reads.unwrap_or(split.primary_reads)
    }

    /// Begins a transaction of a pool that does not split. Tells whether it is one of those that are judged for the forecast.
    pub const fn is_next_sampled(&mut self) -> bool {
        self.unrouted = self.unrouted.wrapping_add(1);
        self.is_sampled()
    }

    /// Whether the transaction is of a run that is judged for the forecast: all of it, so that what reads after a write is
    /// told from what only reads. The lot says which run of a session it is, so that short sessions count too.
    #[must_use]
    pub const fn is_sampled(&self) -> bool {
        (self.unrouted / FORECAST_RUN).wrapping_add(self.lot.number()).is_multiple_of(FORECAST_ONE_RUN_IN)
    }

    /// Whether the begin of a transaction may be put off until its first statement is known.
    #[must_use]
    pub fn may_put_off(&self, view: &View, access: Access) -> bool {
        let config = &view.active.config;
        self.tie.is_none()
            && config.split.transactions == Transactions::ReadOnlyPrefix
            && config.stage >= Stage::Split
            && config.pooling.mode == PoolMode::Transaction
            && access == Access::Routed
            && self.wishes().is_read_committed
            && self.role() != ServerRole::Primary
            && !self.is_primary_user(&config.split)
            && self.is_in_cohort(&config.split)
    }

    /// Puts the begin of a transaction off.
    pub const fn put_off(&mut self, begin: &'static str) {
        self.put_off = Some(begin);
    }

    /// The transaction ends before it has begun anywhere.
    pub const fn forget_put_off(&mut self) {
        self.put_off = None;
    }

    /// Whether a transaction has begun for the client and at no server.
    #[must_use]
    pub const fn is_put_off(&self) -> bool {
        self.put_off.is_some()
    }

    /// What begins the transaction at the server that its first statement is sent to.
    pub fn take_put_off(&mut self) -> Option<&'static str> {
        let begin = self.put_off.take()?;
        self.movable = self.gate.is_watched.then_some(begin);
        Some(begin)
    }

    /// The client's transaction status between requests.
    #[must_use]
    pub const fn status(&self) -> u8 {
        if self.put_off.is_some() { b'T' } else { b'I' }
    }

    /// Whether the request at the front of these bytes may go on in a transaction that has begun with reads on a replica
    /// without being declared READ ONLY.
    #[must_use]
    pub fn lets_pass_in_prefix(
        &self,
        segment: &Segment,
        bytes: &[u8],
        statements: &ClientStatements,
    ) -> bool {
        let shape = shape(bytes.get(..segment.length).unwrap_or_default(), statements);
        // What it has open here cannot be left.
        shape.is_end
            || shape.uses_open_portal
            || (segment.verdict == Verdict::Read
                && shape.is_movable
                && !segment.is_unread
                && !segment.is_open)
    }

    /// Whether a transaction that goes to its end on a replica may still move.
    #[must_use]
    pub const fn is_prefix(&self) -> bool {
        self.movable.is_some()
    }

    /// The transaction leaves its replica; it begins anew at the primary.
    pub fn move_on(&mut self) {
        self.put_off = self.movable.take();
    }

    /// Begins an exchange with a server that only takes reads, or with one that takes everything.
    pub fn begin(&mut self, is_watched: bool, decision: &Decision) {
        let is_in_block = decision.verdict == Verdict::ReadOnlyBlock || self.is_put_off();
        self.movable = None;
        self.gate = Gate { is_watched, is_open: is_watched, is_in_block: is_watched && is_in_block };
    }

    /// Whether what runs now was sent to a server that only takes reads without the client having declared it to be READ
    /// ONLY.
    #[must_use]
    pub const fn promises_reads(&self) -> bool {
        self.gate.is_watched && (!self.gate.is_in_block || self.is_prefix())
    }

    /// Whether the request at the front of these bytes may go to a server that only takes reads.
    #[must_use]
    pub fn lets_pass(&self, segment: &Segment, bytes: &[u8], statements: &ClientStatements) -> bool {
        let role = segment.hint.unwrap_or_else(|| self.role());
        segment.verdict != Verdict::ReadOnlyBlock
            && admits(role, segment.verdict)
            && !segment.is_unread
            && !segment.is_learned
            && !(segment.is_open && segment.runs)
            && self.lets_go(segment, bytes.get(..segment.length).unwrap_or_default(), statements)
    }
}

/// Whether a transaction whose only request was judged like this has written nothing.
#[must_use]
pub const fn leaves_no_trace(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Read | Verdict::ReadOnlyBlock | Verdict::Primary(Reason::SessionState))
}
