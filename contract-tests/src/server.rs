//! The HTTP server of the stubs: that of the programs (`evenkeel_common::http`), on a thread of its own, which can be taken
//! offline.

use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_common::http::{self, HeaderMap, Limits, Method, Response};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use warp::Filter;
use warp::filters::BoxedFilter;
use warp::path::FullPath;

/// A request to a stub.
pub(crate) struct Request {
    /// Its method.
    pub(crate) method: Method,
    /// Its path, without a query.
    pub(crate) path: String,
    /// Its query, without the question mark; empty if there is none.
    pub(crate) query: String,
    /// Its headers.
    pub(crate) headers: HeaderMap,
    /// Its body.
    pub(crate) body: Bytes,
}

impl Request {
    /// Method and path, for example `GET /fleet`.
    pub(crate) fn route(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// Method, path and query, for example `GET /fleet?after=0`.
    pub(crate) fn line(&self) -> String {
        let mark = if self.query.is_empty() { "" } else { "?" };
        format!("{} {}{mark}{}", self.method, self.path, self.query)
    }

    /// Returns a number in the query.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    }
}

/// The server. Stops on drop.
pub(crate) struct Server {
    // `None` only while it is dropped.
    runtime: Option<Runtime>,
    listener: StdListener,
    routes: BoxedFilter<(Response,)>,
    current: Mutex<Option<(CancellationToken, JoinHandle<()>)>>,
}

impl Server {
    /// Starts a server on an unused port, whose responses `handler` gives.
    pub(crate) fn start(
        handler: impl Fn(Request) -> BoxFuture<'static, Response> + Send + Sync + 'static,
    ) -> Self {
        let listener = StdListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("a socket can be set so");
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let handler = Arc::new(handler);
        let query = warp::query::raw().or(warp::any().map(String::new)).unify();
        let routes = warp::method()
            .and(warp::path::full())
            .and(query)
            .and(warp::header::headers_cloned())
            .and(warp::body::bytes())
            .then(move |method, path: FullPath, query, headers, body| {
                handler(Request { method, path: path.as_str().to_owned(), query, headers, body })
            })
            .boxed();
        let server = Self { runtime: Some(runtime), listener, routes, current: Mutex::default() };
        server.set_online(true);
        server
    }

    /// Returns its address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("it is bound")
    }

    /// Goes offline or online. Either way all its connections are closed. Offline, it closes each new one without a response.
    /// The port stays its own: another test could take it otherwise.
    pub(crate) fn set_online(&self, online: bool) {
        let Some(runtime) = &self.runtime else { return };
        let mut current = self.current.lock();
        if let Some((stop, task)) = current.take() {
            stop.cancel();
            runtime.block_on(task).expect("it does not panic");
        }
        let _entered = runtime.enter();
        let listener = self.listener.try_clone().expect("a socket can be shared");
        let listener = TcpListener::from_std(listener).expect("it is non-blocking");
        let stop = CancellationToken::new();
        let task = if online {
            let limits = Limits { drain: Duration::ZERO, ..Limits::default() };
            runtime.spawn(http::serve(vec![listener], self.routes.clone(), limits, stop.clone()))
        } else {
            runtime.spawn(refuse(listener, stop.clone()))
        };
        *current = Some((stop, task));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Closes every connection until `stop` is cancelled.
async fn refuse(listener: TcpListener, stop: CancellationToken) {
    while stop.run_until_cancelled(listener.accept()).await.is_some() {}
}
