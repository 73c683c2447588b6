//! Registries and token services that send informational responses (1xx) endlessly.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use evenkeel_agent::ports::{Registry, Urgency};
use tokio::net::{TcpListener, TcpSocket};

use crate::world::{World, anonymous, challenge, client_of, manifest_digest, ok, reference};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The maximum number of bytes that a flooding server can send: most only fill the buffers of the two sockets.
const BOUND: usize = 4 * 1024 * 1024;
/// The number of bytes after which a flooding server gives up.
const ENDLESS: usize = 32 * BOUND;

/// A server on its own thread, so that it sends at full speed independently of the client's runtime.
struct Server {
    address: String,
    connections: Arc<AtomicUsize>,
    /// Sends on one connection and returns the number of bytes that the socket accepted.
    thread: JoinHandle<usize>,
}

impl Server {
    /// Responds to the first request with `count` informational responses (`usize::MAX`: endlessly), then with `last`.
    fn start(count: usize, last: String) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // A small buffer: bytes in it count as sent, although the client has not read them.
        socket.set_send_buffer_size(64 * 1024).expect("the size can be set");
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let listener = socket.listen(8).and_then(TcpListener::into_std).expect("a listener");
        listener.set_nonblocking(false).expect("the mode can be set");
        let address = listener.local_addr().expect("bound").to_string();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accepted");
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0; 4096]).expect("a request");
            let burst = CONTINUE.repeat(count.min(1000));
            let mut sent = 0;
            while sent < count.saturating_mul(CONTINUE.len()).min(ENDLESS) {
                match stream.write(&burst) {
                    Ok(taken) => sent += taken,
                    Err(_) => return sent,
                }
            }
            let _ = stream.write_all(last.as_bytes());
            // Returns when the client has read it and closed the connection.
            let _ = stream.read(&mut [0; 4096]);
            // Counts a second connection attempt.
            listener.set_nonblocking(true).expect("the mode can be set");
            counted.fetch_add(usize::from(listener.accept().is_ok()), Ordering::SeqCst);
            sent
        });
        Self { address, connections, thread }
    }

    fn flood() -> Self {
        Self::start(usize::MAX, String::new())
    }

    /// Returns the number of bytes sent, after the client has closed the connection.
    async fn sent(self) -> usize {
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await.expect("not cancelled");
        joined.expect("the server did not fail")
    }
}

#[tokio::test]
async fn a_registry_that_sends_100_continue_endlessly_is_disconnected_and_delays_no_other() {
    let world = World::new().await;
    world.on("HEAD", ok(&manifest_digest())).await;
    let flood = Server::flood();
    let client = client_of(&format!("http://{}", flood.address), anonymous());
    let image = reference(&flood.address, "web:1");
    let (flooded, answered) = tokio::join!(client.digest(&image, Urgency::Routine), world.digest());
    assert_eq!(answered, Ok(manifest_digest()));
    let text = format!("registry {}: it sends 1xx responses without a final answer", flood.address);
    assert_eq!(flooded.expect_err("no answer").to_string(), text);

    // The backoff returns the same error without a request.
    let again = client.digest(&image, Urgency::Routine).await;
    assert_eq!(again.expect_err("no answer").to_string(), text);
    assert_eq!(flood.connections.load(Ordering::SeqCst), 1);
    let sent = flood.sent().await;
    assert!(sent < BOUND, "{sent} bytes were accepted");
}

#[tokio::test]
async fn a_token_service_that_sends_100_continue_endlessly_is_disconnected() {
    let flood = Server::flood();
    let world = World::new().await;
    world.on("HEAD", challenge(&format!("Bearer realm=\"http://{}/token\"", flood.address))).await;
    let text = "registry HOST: its token service 127.0.0.1: it sends 1xx responses without a final answer";
    assert_eq!(world.fault().await, text);
    let sent = flood.sent().await;
    assert!(sent < BOUND, "{sent} bytes were accepted");
}

#[tokio::test]
async fn a_few_informational_responses_before_the_final_response_are_accepted() {
    let answer = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nDocker-Content-Digest: {}\r\n\r\n",
        manifest_digest()
    );
    let server = Server::start(8, answer);
    let client = client_of(&format!("http://{}", server.address), anonymous());
    let image = reference(&server.address, "web:1");
    assert_eq!(client.digest(&image, Urgency::Routine).await, Ok(manifest_digest()));
    assert_eq!(server.sent().await, 8 * CONTINUE.len());
}
