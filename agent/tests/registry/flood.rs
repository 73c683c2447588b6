//! Registries and token services that send informational responses (1xx) without end.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use evenkeel_agent::ports::{Registry, Urgency};
use tokio::net::{TcpListener, TcpSocket};

use crate::world::{World, challenge, client_of, manifest_digest, nobody, ok, reference};

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// What a flood gets rid of at most: most of it only fills the buffers of the two sockets.
const BOUND: usize = 4 * 1024 * 1024;
/// What a server sends that nobody stops.
const ENDLESS: usize = 32 * BOUND;

/// A server on a thread of its own, so that it sends as fast as it can whatever the client's runtime does.
struct Server {
    address: String,
    connections: Arc<AtomicUsize>,
    /// Sends on one connection; gives how many bytes the socket took.
    thread: JoinHandle<usize>,
}

impl Server {
    /// Answers the first request with `count` informational responses, or without end, and with `last`.
    fn start(count: usize, last: String) -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        // What the system keeps for the client is not what the client took.
        socket.set_send_buffer_size(64 * 1024).expect("a size of buffers");
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        let listener = socket.listen(8).and_then(TcpListener::into_std).expect("a listener");
        listener.set_nonblocking(false).expect("a mode of sockets");
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
            // Until the client has read it and hangs up.
            let _ = stream.read(&mut [0; 4096]);
            // Who comes now was not sent away.
            listener.set_nonblocking(true).expect("a mode of sockets");
            counted.fetch_add(usize::from(listener.accept().is_ok()), Ordering::SeqCst);
            sent
        });
        Self { address, connections, thread }
    }

    fn flood() -> Self {
        Self::start(usize::MAX, String::new())
    }

    /// The bytes that the server got rid of, once the client has hung up.
    async fn sent(self) -> usize {
        let joined = tokio::task::spawn_blocking(|| self.thread.join()).await.expect("not cancelled");
        joined.expect("the server did not fail")
    }
}

#[tokio::test]
async fn a_registry_that_sends_100_continue_without_end_is_hung_up_on_and_delays_no_other() {
    let world = World::new().await;
    world.on("HEAD", ok(&manifest_digest())).await;
    let flood = Server::flood();
    let client = client_of(&format!("http://{}", flood.address), nobody());
    let image = reference(&flood.address, "web:1");
    let (flooded, answered) = tokio::join!(client.digest(&image, Urgency::Routine), world.digest());
    assert_eq!(answered, Ok(manifest_digest()));
    let text = format!("registry {}: it sends 1xx responses without a final answer", flood.address);
    assert_eq!(flooded.expect_err("no answer").to_string(), text);

    // It is left alone for a while, with the same words.
    let again = client.digest(&image, Urgency::Routine).await;
    assert_eq!(again.expect_err("no answer").to_string(), text);
    assert_eq!(flood.connections.load(Ordering::SeqCst), 1);
    let sent = flood.sent().await;
    assert!(sent < BOUND, "{sent} bytes were taken");
}

#[tokio::test]
async fn a_token_service_that_sends_100_continue_without_end_is_hung_up_on() {
    let flood = Server::flood();
    let world = World::new().await;
    world.on("HEAD", challenge(&format!("Bearer realm=\"http://{}/token\"", flood.address))).await;
    let text = "registry HOST: its token service 127.0.0.1: it sends 1xx responses without a final answer";
    assert_eq!(world.fault().await, text);
    let sent = flood.sent().await;
    assert!(sent < BOUND, "{sent} bytes were taken");
}

#[tokio::test]
async fn a_few_informational_responses_before_the_answer_do_no_harm() {
    let answer = format!(
        "HTTP/1.1 200 OK\r\nConnection: close\r\nDocker-Content-Digest: {}\r\n\r\n",
        manifest_digest()
    );
    let server = Server::start(8, answer);
    let client = client_of(&format!("http://{}", server.address), nobody());
    let image = reference(&server.address, "web:1");
    assert_eq!(client.digest(&image, Urgency::Routine).await, Ok(manifest_digest()));
    assert_eq!(server.sent().await, 8 * CONTINUE.len());
}
