//! What the console does to databases, connections, clients and the process.

use std::sync::Arc;
use std::time::Duration;

use pgrouting_contract::report::ConfigOutcome;
use tokio::time::{sleep, timeout};
use tracing::info;

use crate::console::command::{Command, Shutdown};
use crate::console::sources::{LOOK_INTERVAL, Sources};
use crate::console::tables::databases::names;
use crate::error::{ClientError, ErrorKind};
use crate::fleet::halts::TooManyHalts;
use crate::pool::server_pool::ServerPool;
use crate::roster::Seat;
use crate::wire::sqlstate::{self, SqlState};

/// The longest that clients that were told to leave are waited for.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// What it is called.
    pub tag: &'static str,
    /// Something that whoever asked may not have expected.
    pub notice: Option<String>,
}

/// Does what a command says, and waits until it is done; a pause that is dropped before that ends. SHOW and SET are none
/// of these.
///
/// # Errors
/// When it cannot be done, or makes no sense now.
pub async fn act(command: &Command, sources: &Sources, own: &Seat) -> Result<Done, ClientError> {
    info!(?command, user = own.identity.user, "a command at the console");
    if named(command).is_some_and(|database| database == sources.config().database) {
        return Err(refuse(sqlstate::FEATURE_NOT_SUPPORTED, "the console cannot be stopped from within")
            .with_hint("console.adminUsers and console.statsUsers say who may use it."));
    }
    let notice = named(command).and_then(|database| unknown(sources, database));
    let tag = match command {
        Command::Pause(database) => pause(sources, database.as_deref()).await?,
        Command::Resume(database) => resume(sources, database.as_deref())?,
        Command::Disable(database) => {
            sources.control.fleet.halt(|halts| halts.disable(database)).map_err(too_many)?;
            "DISABLE"
        }
        Command::Enable(database) => {
            sources.control.fleet.halt(|halts| halts.enable(database));
            "ENABLE"
        }
        Command::Reconnect(database) => {
            pools(sources).iter().for_each(|pool| pool.recycle_of(database.as_deref()));
            "RECONNECT"
        }
        Command::WaitClose(database) => wait_close(sources, database.as_deref()).await,
        Command::Kill(database) => kill(sources, database.as_deref()).await?,
        Command::KillClient(id) => kill_client(sources, *id, own).await?,
        Command::Reload => reload(sources).await?,
        Command::Shutdown(how) => {
            shut_down(sources, *how);
            "SHUTDOWN"
        }
        Command::Suspend => {
            return Err(refuse(
                sqlstate::FEATURE_NOT_SUPPORTED,
                "SUSPEND is not supported: this process hands its sockets to no other",
            )
            .with_hint(
                "PAUSE makes requests wait; on Kubernetes a new pod takes over from one that drains.",
            ));
        }
        Command::Show(_)
        | Command::SetOfClient
        | Command::SetOther(_)
        | Command::Reset(_)
        | Command::SelectOne
        | Command::Transaction => return Err(refuse(sqlstate::INTERNAL_ERROR, "nothing is to be done")),
    };
    Ok(Done { tag, notice })
}

/// The database that a command names.
fn named(command: &Command) -> Option<&str> {
    match command {
        Command::Pause(database)
        | Command::Reconnect(database)
        | Command::WaitClose(database)
        | Command::Kill(database) => database.as_deref(),
        Command::Disable(database) => Some(database),
        _ => None,
    }
}

/// What to say where nobody has used a database of that name: it may be misspelt, or be used later.
fn unknown(sources: &Sources, database: &str) -> Option<String> {
    (!names(sources).contains(database))
        .then(|| format!("no client has used database \"{database}\" here yet"))
}

/// Ends a pause that nobody waits for any more.
struct Unfinished<'a> {
    sources: &'a Sources,
    database: Option<&'a str>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        info!(database = self.database, "the pause is given up");
        self.sources.control.fleet.halt(|halts| halts.resume(self.database));
    }
}

/// Makes new requests wait; comes back when all transactions have ended and their connections are closed.
async fn pause(sources: &Sources, database: Option<&str>) -> Result<&'static str, ClientError> {
    let is_new = sources.control.fleet.halt(|halts| halts.pause(database)).map_err(too_many)?;
    if !is_new && database.is_none() {
        return Err(refuse(sqlstate::NOT_IN_PREREQUISITE_STATE, "all databases are paused already")
            .with_hint("RESUME lets them go on."));
    }
    // One that was paused before stays so whatever becomes of this.
    let unfinished = is_new.then_some(Unfinished { sources, database });
    loop {
        let pools = pools(sources);
        // What was opened by whoever had not heard of the pause is closed too.
        pools.iter().for_each(|pool| pool.recycle_of(database));
        if !pools.iter().any(|pool| pool.has_any(database)) {
            break;
        }
        sleep(LOOK_INTERVAL).await;
    }
    unfinished.into_iter().for_each(std::mem::forget);
    Ok("PAUSE")
}

fn resume(sources: &Sources, database: Option<&str>) -> Result<&'static str, ClientError> {
    if sources.control.fleet.halt(|halts| halts.resume(database)) {
        return Ok("RESUME");
    }
    Err(match database {
        None => refuse(sqlstate::NOT_IN_PREREQUISITE_STATE, "nothing is paused"),
        Some(database) => refuse(
            sqlstate::NOT_IN_PREREQUISITE_STATE,
            format!("database \"{database}\" is not paused by itself"),
        ),
    }
    .with_hint("SHOW DATABASES says what is paused; what PAUSE has paused for all, RESUME resumes for all."))
}

/// Waits until what was to be closed is.
async fn wait_close(sources: &Sources, database: Option<&str>) -> &'static str {
    let is_of = |name: &str| database.is_none_or(|database| database == name);
    while pools(sources).iter().any(|pool| {
        let mut connections = pool.connections().into_iter();
        connections.any(|c| c.is_to_close && is_of(&c.open.about.identity.database))
    }) {
        sleep(LOOK_INTERVAL).await;
    }
    "WAIT_CLOSE"
}

/// Ends the clients and connections of a database, or of all, at once; it is paused after that.
async fn kill(sources: &Sources, database: Option<&str>) -> Result<&'static str, ClientError> {
    let console = sources.config().database;
    sources.control.fleet.halt(|halts| halts.pause(database)).map_err(too_many)?;
    let killed = sources.roster.kill(|seat| {
        let name = &seat.identity.database;
        *name != console && database.is_none_or(|database| database == name)
    });
    pools(sources).iter().for_each(|pool| pool.cut_of(database));
    until_gone(sources, &killed).await;
    Ok("KILL")
}

async fn kill_client(sources: &Sources, id: u64, own: &Seat) -> Result<&'static str, ClientError> {
    if id == own.id {
        return Err(refuse(sqlstate::INVALID_PARAMETER_VALUE, "that is this client"));
    }
    let killed = sources.roster.kill(|seat| seat.id == id);
    if killed.is_empty() {
        return Err(refuse(sqlstate::UNDEFINED_OBJECT, format!("there is no client {id}"))
            .with_hint("The ids of clients are in the column id of SHOW CLIENTS."));
    }
    until_gone(sources, &killed).await;
    Ok("KILL_CLIENT")
}

/// Waits for clients that were told to leave. One that takes its time leaves all the same.
async fn until_gone(sources: &Sources, killed: &[Arc<Seat>]) {
    let gone = async {
        while killed.iter().any(|seat| sources.roster.has(seat.id)) {
            sleep(LOOK_INTERVAL).await;
        }
    };
    let _ = timeout(LEAVE_TIMEOUT, gone).await;
}

/// Reads the document again, on the runtime that it is put into effect on.
async fn reload(sources: &Sources) -> Result<&'static str, ClientError> {
    let control = Arc::clone(&sources.control);
    let reloaded = sources.runtime.spawn(async move { control.reload().await }).await;
    let reasons = match reloaded {
        Ok(Ok(answer)) => match answer.outcome {
            ConfigOutcome::Applied | ConfigOutcome::Unchanged => return Ok("RELOAD"),
            ConfigOutcome::Stale | ConfigOutcome::Refused => answer.reasons.join("; "),
        },
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the process is being stopped".to_owned(),
    };
    Err(refuse(sqlstate::CONFIG_FILE, format!("the document is not taken: {reasons}"))
        .with_hint("The one before is in effect."))
}

fn shut_down(sources: &Sources, how: Shutdown) {
    sources.shutdown.send_replace(Some(how));
}

fn pools(sources: &Sources) -> Vec<Arc<ServerPool>> {
    sources.view().pools.clone()
}

fn too_many(error: TooManyHalts) -> ClientError {
    refuse(sqlstate::CONFIGURATION_LIMIT_EXCEEDED, error.to_string())
        .with_hint("RESUME and ENABLE make room; PAUSE without a name pauses all.")
}

/// An error that leaves everything as it is.
fn refuse(sqlstate: SqlState, message: impl Into<std::borrow::Cow<'static, str>>) -> ClientError {
    ClientError::error(ErrorKind::Client, sqlstate, message)
}
