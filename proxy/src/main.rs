//! Starts the proxy: arguments, threads, wiring, signals.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, ValueEnum};
use pgrouting_contract::config::{ProcessConfig, ProxyConfig};
use pgrouting_proxy::admin::{self, Admin, Readiness};
use pgrouting_proxy::auth::users::Credentials;
use pgrouting_proxy::cancel::CancelRegistry;
use pgrouting_proxy::catalogs::Catalogs;
use pgrouting_proxy::config::{ActiveConfig, ConfigStore};
use pgrouting_proxy::console::command::Shutdown;
use pgrouting_proxy::console::sources::{LOOK_INTERVAL, Sources};
use pgrouting_proxy::control::Control;
use pgrouting_proxy::fleet::Fleet;
use pgrouting_proxy::listener::{self, Accepted};
use pgrouting_proxy::metrics::WorkerMetrics;
use pgrouting_proxy::metrics::pools::Pools;
use pgrouting_proxy::mirror::hub::Hub;
use pgrouting_proxy::mirror::service::Service;
use pgrouting_proxy::peers::Peers;
use pgrouting_proxy::roles::Roles;
use pgrouting_proxy::roster::Alarm;
use pgrouting_proxy::route::Access;
use pgrouting_proxy::server::connection::{Identities, WorkerId};
use pgrouting_proxy::server::settings::SettingsRegistry;
use pgrouting_proxy::session::context::{Context, Worker};
use pgrouting_proxy::session::state::Databases;
use pgrouting_proxy::timekeeper::Timekeeper;
use pgrouting_proxy::tls::store::TlsStore;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::info;

/// Buffers are taken and given back for each query; this allocator does that without a lock.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The longest that clients are still accepted after SIGTERM, for load balancers to notice.
const ACCEPT_GRACE: Duration = Duration::from_secs(5);

/// The PostgreSQL routing proxy.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The config document, in YAML.
    #[arg(long)]
    config: PathBuf,
    /// Check the document and exit.
    #[arg(long)]
    check: bool,
    /// The form of the log.
    #[arg(long, value_enum, default_value = "text", env = "PGROUTING_LOG_FORMAT")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    begin_logging(arguments.log_format);
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn begin_logging(format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let path = arguments.config;
    let document = std::fs::read(&path).with_context(|| path.display().to_string())?;
    let config = ProxyConfig::parse(&document).with_context(|| path.display().to_string())?;
    if arguments.check {
        info!(hash = config.hash().as_str(), "the document is good");
        return Ok(());
    }
    let control_runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    control_runtime.block_on(serve(path, document, config))
}

async fn serve(path: PathBuf, document: Vec<u8>, config: ProxyConfig) -> anyhow::Result<()> {
    let process = config.process.clone();
    let drain_timeout = config.drain_timeout.get();
    let sockets = Sockets::open(&process)?;
    let active = ActiveConfig::new(config);
    let credentials = Arc::new(Credentials::default());
    let identities = Arc::new(Identities::default());
    let settings = Arc::new(SettingsRegistry::default());
    let tls = Arc::<TlsStore>::default();
    tls.apply(tls.prepare(&active.config).map_err(|reasons| anyhow::anyhow!(reasons.join("; ")))?);
    let fleet = Fleet::start(&active, Arc::clone(&credentials), settings.none(), Arc::clone(&tls.server));
    let cancels = Arc::new(CancelRegistry::default());
    let control = Control::new(
        ConfigStore::new(Arc::clone(&active)),
        Arc::clone(&fleet),
        Arc::clone(&credentials),
        Arc::clone(&cancels),
        Arc::clone(&tls),
        path,
        document,
    );
    control.refresh_secrets().await;
    let (audit, sites, pools) = (Arc::default(), Arc::default(), Arc::<Pools>::default());
    let catalogs = Catalogs::new(Arc::clone(&fleet), Arc::clone(&credentials), settings.none());
    let mirror = Arc::<Hub>::default();
    let (console, mut shutdowns) = Sources::new(&control, &pools, &mirror);
    let context = Arc::new(Context {
        console: Arc::clone(&console),
        mirror: Arc::clone(&mirror),
        zone: std::env::var("PGROUTING_ZONE").ok().filter(|zone| !zone.is_empty()),
        roles: Roles::new(Arc::clone(&credentials), settings.none()),
        cancels: Arc::clone(&cancels),
        roster: Arc::clone(&console.roster),
        peers: Peers::default(),
        statements: pgrouting_proxy::server::prepared::Statements::default(),
        catalogs: Arc::clone(&catalogs),
        sites: Arc::clone(&sites),
        pools: Arc::clone(&pools),
        verdicts: Arc::default(),
        fleet,
        credentials,
        settings,
        tls,
        databases: Databases::default(),
        audit: Arc::clone(&audit),
        identities,
        greetings: pgrouting_proxy::session::context::Greetings::default(),
        guesses: std::sync::Mutex::default(),
        secret: rand::random(),
    });
    let threads = Threads::start(&process, &context)?;
    let copies = start_mirror(Arc::clone(&mirror), &context)?;
    let own = Arc::new(WorkerMetrics::default());
    let admin = Arc::new(Admin {
        control: Arc::clone(&control),
        cancels,
        workers: threads.metrics.iter().chain([&own]).cloned().collect(),
        own,
        pools,
        readiness: Readiness::default(),
        token: read_token(&process)?,
        audit,
        catalogs,
        sites,
        mirror,
        stopped: Arc::default(),
        process: admin::name_process(),
    });
    sockets.serve(&process, &admin, &threads)?;
    tokio::spawn(watch_primary(Arc::clone(&admin)));
    let background = Arc::clone(&control);
    tokio::spawn(async move { background.run().await });
    let timekeeper = Timekeeper {
        roster: Arc::clone(&console.roster),
        views: control.fleet.subscribe(),
        stopped: Arc::clone(&admin.stopped),
    };
    tokio::spawn(timekeeper.run());
    let history = Arc::clone(&console.history);
    tokio::spawn(async move { history.run().await });
    info!(listen = process.listen, generation = active.config.generation.0, "serving");
    let how = wait_for_stop(&control, &mut shutdowns).await?;
    let stopped = stop(&admin, threads, drain_timeout, how, &console).await;
    copies.cancel();
    stopped
}

/// Starts the thread that runs the copies of transactions; it ends when the token is cancelled.
fn start_mirror(hub: Arc<Hub>, context: &Context) -> anyhow::Result<CancellationToken> {
    let service = Service {
        hub,
        views: context.fleet.subscribe(),
        credentials: Arc::clone(&context.credentials),
        identities: Arc::clone(&context.identities),
        settings: context.settings.none(),
        tls: Arc::clone(&context.tls.mirror),
    };
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new()
        .name("mirror".to_owned())
        .spawn(move || runtime.block_on(service.run(stopped)))?;
    Ok(stop)
}

/// Notes when a primary has been found for the first time.
async fn watch_primary(admin: Arc<Admin>) {
    let mut view = admin.control.fleet.subscribe();
    if view.wait_for(|view| view.topology.primary.is_some()).await.is_ok() {
        admin.readiness.found_primary();
    }
}

/// Reloads at SIGHUP; returns at SIGTERM or SIGINT, or with what the console says.
async fn wait_for_stop(
    control: &Control,
    shutdowns: &mut watch::Receiver<Option<Shutdown>>,
) -> anyhow::Result<Option<Shutdown>> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            // What comes of it is in the log.
            _ = hangup.recv() => drop(control.reload().await),
            _ = terminate.recv() => return Ok(None),
            _ = interrupt.recv() => return Ok(None),
            Ok(()) = shutdowns.changed() => return Ok(*shutdowns.borrow()),
        }
    }
}

/// Lets clients leave at their transaction boundaries, and the rest when the time is up or a second signal comes. The
/// console may have said that they are to leave at once, or to be waited for without an end.
async fn stop(
    admin: &Admin,
    threads: Threads,
    drain_timeout: Duration,
    how: Option<Shutdown>,
    console: &Sources,
) -> anyhow::Result<()> {
    admin.readiness.begin_draining();
    let mut again = signal(SignalKind::terminate())?;
    let (grace, drain_timeout) = match how {
        None => (ACCEPT_GRACE.min(drain_timeout / 4), drain_timeout),
        Some(Shutdown::AtOnce) => (Duration::ZERO, Duration::ZERO),
        Some(Shutdown::WaitForServers) => (Duration::ZERO, drain_timeout),
        Some(Shutdown::WaitForClients) => {
            threads.closing.cancel();
            info!("the last client is waited for");
            tokio::select! {
                () = until_left(console) => {}
                _ = again.recv() => {}
            }
            (Duration::ZERO, drain_timeout)
        }
    };
    info!(?grace, ?drain_timeout, "draining");
    let deadline = tokio::time::Instant::now() + drain_timeout;
    tokio::select! {
        () = tokio::time::sleep(grace) => {}
        _ = again.recv() => {}
    }
    threads.alarm.raise();
    threads.drain.cancel();
    let Threads { kill, ended, metrics: _, drain: _, closing: _, alarm: _, accepting } = threads;
    drop(accepting);
    let mut all_ended = std::pin::pin!(async {
        for thread in ended {
            // A thread that panicked has ended too.
            let _ = thread.await;
        }
    });
    let have_all_left = tokio::select! {
        () = &mut all_ended => true,
        () = tokio::time::sleep_until(deadline) => false,
        _ = again.recv() => false,
    };
    kill.cancel();
    if !have_all_left {
        // Sessions that are killed say goodbye, which takes them a second at most.
        let _ = tokio::time::timeout(Duration::from_secs(2), all_ended).await;
    }
    info!("stopped");
    Ok(())
}

/// Ends when nobody is connected but those at the console.
async fn until_left(console: &Sources) {
    while !console.clients().is_empty() {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// The sockets of the process, all open or none.
struct Sockets {
    clients: Vec<(tokio::net::TcpListener, Access)>,
    admin: tokio::net::TcpListener,
    probe: tokio::net::TcpListener,
}

impl Sockets {
    fn open(process: &ProcessConfig) -> anyhow::Result<Self> {
        let open = |address: &str| -> anyhow::Result<tokio::net::TcpListener> {
            let parsed: SocketAddr = address.parse().with_context(|| format!("process: {address}"))?;
            listener::bind(parsed).with_context(|| format!("cannot listen on {address}"))
        };
        let mut clients = vec![(open(&process.listen)?, Access::Routed)];
        for (address, access) in
            [(&process.primary_listen, Access::Primary), (&process.read_only_listen, Access::ReadOnly)]
        {
            if let Some(address) = address {
                clients.push((open(address)?, access));
            }
        }
        let admin = open(&process.admin_listen)?;
        let is_guarded = process.admin_tls.is_some() || process.admin_token_file.is_some();
        if !is_guarded && !admin.local_addr()?.ip().is_loopback() {
            anyhow::bail!(
                "process.adminListen: needs adminTls or adminTokenFile unless it is a loopback address"
            );
        }
        Ok(Self { clients, admin, probe: open(&process.probe_listen)? })
    }

    fn serve(self, process: &ProcessConfig, admin: &Arc<Admin>, threads: &Threads) -> anyhow::Result<()> {
        for (listener, access) in self.clients {
            let handovers = threads.accepting.clone();
            tokio::spawn(listener::accept(listener, access, handovers, threads.closing.clone()));
        }
        tokio::spawn(admin::serve::plain(self.probe, admin::public_routes(Arc::clone(admin))));
        let routes = admin::admin_routes(Arc::clone(admin));
        match process.admin_tls.clone() {
            Some(files) => {
                let peer_routes = admin::peer_routes(Arc::clone(admin));
                tokio::spawn(admin::serve::mutual_tls(self.admin, routes, peer_routes, files))
            }
            None => tokio::spawn(admin::serve::plain(self.admin, routes)),
        };
        Ok(())
    }
}

fn read_token(process: &ProcessConfig) -> anyhow::Result<Option<String>> {
    let Some(path) = &process.admin_token_file else { return Ok(None) };
    let token = std::fs::read_to_string(path).with_context(|| path.clone())?;
    let token = token.trim();
    anyhow::ensure!(!token.is_empty(), "{path}: empty");
    Ok(Some(token.to_owned()))
}

/// The serving threads.
struct Threads {
    accepting: Vec<mpsc::Sender<Accepted>>,
    metrics: Vec<Arc<WorkerMetrics>>,
    ended: Vec<oneshot::Receiver<()>>,
    alarm: Arc<Alarm>,
    drain: CancellationToken,
    /// Cancelled when no client is accepted any more, at the latest when they have to leave.
    closing: CancellationToken,
    kill: CancellationToken,
}

impl Threads {
    fn start(process: &ProcessConfig, context: &Arc<Context>) -> anyhow::Result<Self> {
        let count = match process.workers {
            0 => u16::try_from(std::thread::available_parallelism()?.get()).unwrap_or(u16::MAX),
            workers => workers,
        };
        let drain = CancellationToken::new();
        let mut threads = Self {
            accepting: Vec::new(),
            metrics: Vec::new(),
            ended: Vec::new(),
            alarm: Arc::clone(context.roster.alarm()),
            closing: drain.child_token(),
            drain,
            kill: CancellationToken::new(),
        };
        for number in 0..count {
            threads.spawn(number, context)?;
        }
        Ok(threads)
    }

    fn spawn(&mut self, number: u16, context: &Arc<Context>) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (accepting, accepted) = mpsc::channel(listener::HANDOVER_MAX);
        let (ending, ended) = oneshot::channel();
        let worker = self.worker(number);
        let context = Arc::clone(context);
        std::thread::Builder::new().name(format!("serve-{number}")).spawn(move || {
            runtime.block_on(listener::serve(accepted, context, worker));
            // The control thread may have given up waiting.
            let _ = ending.send(());
        })?;
        self.accepting.push(accepting);
        self.ended.push(ended);
        Ok(())
    }

    fn worker(&mut self, number: u16) -> Arc<Worker> {
        let metrics = Arc::new(WorkerMetrics::default());
        self.metrics.push(Arc::clone(&metrics));
        Arc::new(Worker {
            id: WorkerId(number),
            metrics,
            alarm: Arc::clone(&self.alarm),
            drain: self.drain.child_token(),
            kill: self.kill.child_token(),
        })
    }
}
