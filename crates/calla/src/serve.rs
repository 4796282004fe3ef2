//! `calla serve`.

use std::{net::SocketAddr, time::Duration};

use calla_server::ServerConfig;
use tokio::runtime::Builder;

use crate::{
    args::ServeArgs,
    error::Error,
    model::{self, OpenedChat},
    small_file,
};

/// Far more than any key takes.
const KEY_BYTES_MAX: u64 = 64 << 10;

pub(crate) fn run(args: ServeArgs, verbose: u8) -> Result<(), Error> {
    let config = ServerConfig {
        address: SocketAddr::new(args.host, args.port),
        api_key: api_key(&args)?,
        body_bytes_max: usize::from(args.max_body_mb) << 20,
        connections_max: args.max_connections.get(),
        drain_grace: Duration::from_secs(args.drain_seconds),
        ..ServerConfig::default()
    };
    // A model that is not there, cannot talk or does not fit is noticed before the port opens.
    let opened = open(&args, verbose)?;
    let runtime = Builder::new_multi_thread().enable_all().build().map_err(Error::Runtime)?;
    let load = move || {
        let ServeArgs { model, backend, engine, cache, .. } = &args;
        Ok(opened.load(model, backend, engine.config(Some(cache)), verbose)?)
    };
    let served = runtime.block_on(calla_server::serve(config, load));
    // A model that still loads cannot be stopped; it ends with the process.
    runtime.shutdown_background();
    Ok(served?)
}

fn open(args: &ServeArgs, verbose: u8) -> Result<OpenedChat, Error> {
    let ServeArgs { model, backend, engine, cache, sampling, .. } = args;
    let engine = engine.config(Some(cache));
    model::open_chat(model, backend, &engine, sampling.overrides(), verbose)
}

/// The key from the flag, the environment or a file.
fn api_key(args: &ServeArgs) -> Result<Option<String>, Error> {
    let Some(path) = &args.api_key_file else { return Ok(args.api_key.clone()) };
    let file = |problem: String| Error::File { path: path.clone(), problem };
    let key = small_file::read(path, KEY_BYTES_MAX).map_err(|error| file(error.to_string()))?;
    match key.trim() {
        "" => Err(file("is empty: expected a key on its first line".into())),
        key if key.contains(char::is_whitespace) => {
            Err(file("holds white space inside the key: expected one key".into()))
        }
        key => Ok(Some(key.to_owned())),
    }
}
