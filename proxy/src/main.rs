//! Starts the proxy.
fn main() {}
