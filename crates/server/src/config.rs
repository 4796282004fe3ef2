use std::{net::SocketAddr, time::Duration};

/// What a server can be told.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where to listen. Port 0 lets the system choose; [`crate::Server::address`] tells.
    pub address: SocketAddr,
    /// The key that clients must send as `Authorization: Bearer KEY`; `None`: no key.
    pub api_key: Option<String>,
    /// Largest request body.
    pub body_bytes_max: usize,
    /// How long a client may take to send a body, from its head to its last byte.
    pub body_timeout: Duration,
    /// Most connections at a time; further ones wait to be accepted.
    pub connections_max: usize,
    /// How long running answers may go on after the server was told to stop.
    pub drain_grace: Duration,
    /// How long a streamed answer may hold back its headers while nothing is generated yet, and
    /// the longest silence on a stream after that.
    pub heartbeat: Duration,
}

impl Default for ServerConfig {
    /// Loopback, port 8080, no key.
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            api_key: None,
            body_bytes_max: 32 << 20,
            body_timeout: Duration::from_secs(60),
            connections_max: 1024,
            drain_grace: Duration::from_secs(30),
            heartbeat: Duration::from_secs(10),
        }
    }
}
