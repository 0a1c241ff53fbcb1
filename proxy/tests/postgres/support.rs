//! What the tests stand on: servers, proxies, a client that sends any bytes, and ways to compare.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use tokio::time::Instant;

pub mod certificates;
pub mod client;
pub mod console;
pub mod http;
mod keeper;
pub mod message;
pub mod proxy;
pub mod random;
pub mod same;
pub mod secure;
pub mod server;

/// The longest that anything may take before a test gives up. It proves nothing; it ends what hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks again and again until there is an answer.
pub fn poll<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// A port on 127.0.0.1 that nobody listens on, outside the range from which the system gives ports to clients.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % 150).unwrap_or_default() * 100 + 15_000;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 2_700;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
