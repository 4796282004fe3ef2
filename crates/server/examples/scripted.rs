//! Serves the tests' scripted model, so that clients written in other languages can be tested
//! against known answers. Prints the address it listens on and serves until it is told to stop.

#[path = "../tests/api/support/mod.rs"]
mod support;

use std::net::Ipv4Addr;

use calla_engine::EngineConfig;
use calla_server::{Server, ServerConfig};
use support::{Pace, scripted_model, standard_script};
use tokio::sync::mpsc;

#[tokio::main]
async fn main() -> Result<(), calla_server::Error> {
    let address = (Ipv4Addr::LOCALHOST, 0).into();
    let server = Server::bind(ServerConfig { address, ..ServerConfig::default() }).await?;
    println!("{}", server.address());
    // Nobody asks it to stop but the system.
    let (_stop, signals) = mpsc::channel(1);
    let load = || Ok(scripted_model(&standard_script(), Pace::default(), EngineConfig::default()));
    server.run(load, signals).await
}
