//! Connections: how many at a time, how long a client may take over its request head, and how they
//! end.

use std::{io, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use hyper::{body::Incoming, http::Request, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, watch},
};
use tower_service::Service;

/// Longest wait for a complete request head; also ends connections that stay idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest request head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Pause after the system refused a connection, which it does when it has no file handles left.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Serves connections until `closing` turns true, then lets each finish the answer it is giving.
pub(crate) async fn serve_connections(
    listener: TcpListener,
    router: Router,
    connections_max: usize,
    mut closing: watch::Receiver<bool>,
) {
    let permits = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
    // Every connection holds a copy of `open`: the channel closes with the last of them.
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            () = turned(&mut closing) => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        let (stream, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let connection = serve_connection(stream, router.clone(), closing.clone());
        let open = open.clone();
        tokio::spawn(async move {
            connection.await;
            drop((open, permit));
        });
    }
    drop(open);
    // `recv` gives `None` when no sender is left; nothing is ever sent.
    all_closed.recv().await;
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
    let (stream, _) = listener.accept().await?;
    // Tokens are small: waiting to fill a packet would only delay them.
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}

async fn serve_connection(stream: TcpStream, router: Router, mut closing: watch::Receiver<bool>) {
    let service = service_fn(|request: Request<Incoming>| {
        // A router is always ready, so `call` needs no `poll_ready` before it.
        router.clone().call(request.map(Body::new))
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service)
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = turned(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended early");
    }
}

/// Returns once the switch is on, or its owner is gone.
pub(crate) async fn turned(switch: &mut watch::Receiver<bool>) {
    let _ = switch.wait_for(|&on| on).await;
}
