//! Connections, and how long and how many of them are borne.
//!
//! A client that sends its request a letter at a time, never reads its answer, or only holds a connection open costs a socket
//! and a little memory. There are so many of them and no more; who comes then waits to be let in.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::refusal::Refusal;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Open at the same time, those of `WebSocket`s too.
    pub(crate) sockets: usize,
    /// From the end of an answer, or the beginning, to the end of the next request's head.
    pub(crate) head: Duration,
    /// From there to the end of its body.
    pub(crate) body: Duration,
    /// That a client takes nothing of what is there for it.
    pub(crate) reading: Duration,
}

pub(crate) const LIMITS: Limits = Limits {
    sockets: 4096,
    head: Duration::from_secs(30),
    body: Duration::from_mins(1),
    reading: Duration::from_mins(1),
};

/// The most that any path takes; each may take less.
const BODY_BYTES: usize = 8 << 20;
/// Until another try where a connection could not be taken, most likely because too many files are open.
const PAUSE: Duration = Duration::from_millis(200);

/// How long it is waited, at the end, for answers that are under way.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Answers until `ended`, and then what was asked by then.
pub(crate) async fn answer(
    listener: TcpListener,
    app: Router,
    limits: Limits,
    ended: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(limits.sockets));
    let closing = watch::Sender::new(false);
    tokio::select! {
        () = accept(listener, app, limits, &places, &closing) => {}
        () = ended => {}
    }
    closing.send_replace(true);
    let all = u32::try_from(limits.sockets).unwrap_or(u32::MAX);
    // Who does not take its answer in time goes without.
    let _ = timeout(LAST_ANSWERS, places.acquire_many(all)).await;
}

/// Takes connections for ever.
async fn accept(
    listener: TcpListener,
    app: Router,
    limits: Limits,
    places: &Arc<Semaphore>,
    closing: &watch::Sender<bool>,
) {
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let mut closing = closing.subscribe();
        // A piece of a reply is small and must not wait for the next.
        drop(stream.set_nodelay(true));
        let connection = Connection {
            stream,
            patience: limits.reading,
            stalled: None,
            _place: place,
        };
        let service = TowerToHyperService::new(app.clone());
        tokio::spawn(async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(limits.head)
                .serve_connection(TokioIo::new(connection), service)
                .with_upgrades();
            let mut served = std::pin::pin!(served);
            // How it ended is the client's business.
            tokio::select! {
                _ = served.as_mut() => return,
                _ = closing.wait_for(|closing| *closing) => served.as_mut().graceful_shutdown(),
            }
            let _ = served.await;
        });
    }
}

/// Reads a request's body before anybody waits for it.
pub(crate) async fn whole(State(limit): State<Duration>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if body.size_hint().lower() > BODY_BYTES as u64 {
        drop(timeout(limit, read_away(body)).await);
        return Refusal::too_large(BODY_BYTES).into_response();
    }
    match timeout(limit, to_bytes(body, BODY_BYTES)).await {
        Ok(Ok(bytes)) => {
            next.run(Request::from_parts(parts, Body::from(bytes)))
                .await
        }
        Ok(Err(_)) => Refusal::too_large(BODY_BYTES).into_response(),
        Err(_) => Refusal::too_slow(limit.as_secs()).into_response(),
    }
}

/// Whoever is still sending does not hear an answer. So what is somewhat too much is read and forgotten.
async fn read_away(body: Body) {
    let (mut pieces, mut left) = (body.into_data_stream(), 4 * BODY_BYTES);
    while let Some(Ok(piece)) = pieces.next().await {
        left = left.saturating_sub(piece.len());
        if left == 0 {
            return;
        }
    }
}

/// A socket with its place among those that may be open.
struct Connection {
    stream: TcpStream,
    /// How long it may take until the client takes something.
    patience: Duration,
    /// Runs while nothing can be written.
    stalled: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// What a write came to, or the end of patience.
    fn written(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.stalled = None;
            return result;
        }
        let until = Instant::now() + self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        match stalled.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};

    use axum::middleware::from_fn_with_state;
    use axum::routing::{get, post};

    use super::*;

    const SHORT: Duration = Duration::from_millis(300);

    fn serving(limits: Limits) -> SocketAddr {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let app = Router::new()
                    .route("/", get(|| async { "here" }))
                    .route("/much", get(|| async { "x".repeat(64 << 20) }))
                    .route("/echo", post(|body: String| async move { body }))
                    .layer(from_fn_with_state(limits.body, whole));
                let listener = TcpListener::from_std(listener).unwrap();
                answer(listener, app, limits, std::future::pending()).await;
            });
        });
        address
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// Everything until the other side closes.
    fn rest(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        // A connection that is cut off has nothing more to say either.
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn ask(stream: &mut TcpStream, request: &str) -> String {
        stream.write_all(request.as_bytes()).unwrap();
        rest(stream)
    }

    const CLOSING: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

    fn limits() -> Limits {
        Limits {
            sockets: 8,
            head: SHORT,
            body: SHORT,
            reading: SHORT,
        }
    }

    #[test]
    fn who_is_slow_to_ask_is_left() {
        let address = serving(limits());
        assert!(ask(&mut connect(address), CLOSING).ends_with("here"));
        // Not a word, half a head, and nothing more after an answer
        assert_eq!(rest(&mut connect(address)), "");
        let half = ask(&mut connect(address), "GET / HTTP/1.1\r\nHost:");
        assert!(!half.contains("200"), "{half}");
        let kept = ask(
            &mut connect(address),
            "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        );
        assert!(kept.contains("200 OK") && kept.ends_with("here"), "{kept}");
    }

    #[test]
    fn a_body_comes_soon_and_is_no_larger_than_any_path_takes() {
        let address = serving(limits());
        let head = |length: usize| {
            format!(
                "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
            )
        };
        let echoed = ask(&mut connect(address), &format!("{}words", head(5)));
        assert!(echoed.ends_with("words"), "{echoed}");
        let slow = ask(&mut connect(address), &format!("{}wor", head(5)));
        assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
        let large = ask(&mut connect(address), &head(BODY_BYTES + 1));
        assert!(large.starts_with("HTTP/1.1 413"), "{large}");
    }

    #[test]
    fn who_does_not_read_is_left_and_makes_room() {
        let address = serving(Limits {
            sockets: 1,
            ..limits()
        });
        let mut deaf = connect(address);
        deaf.write_all(b"GET /much HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        // There is one place, so this is answered once the other has been given up.
        let begun = std::time::Instant::now();
        assert!(ask(&mut connect(address), CLOSING).ends_with("here"));
        assert!(begun.elapsed() >= SHORT / 2, "{:?}", begun.elapsed());
        assert!(rest(&mut deaf).len() < 64 << 20);
    }

    #[test]
    fn there_are_so_many_sockets_and_no_more() {
        let address = serving(Limits {
            sockets: 2,
            head: Duration::from_secs(5),
            ..limits()
        });
        let idle = [connect(address), connect(address)];
        let mut third = connect(address);
        third.write_all(CLOSING.as_bytes()).unwrap();
        third.set_read_timeout(Some(SHORT)).unwrap();
        assert!(third.read(&mut [0; 16]).is_err());
        drop(idle);
        third
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        assert!(rest(&mut third).ends_with("here"));
    }
}
