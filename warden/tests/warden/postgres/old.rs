//! A fake server of an old version: the necessary messages of PostgreSQL's protocol, version 3.

use evenkeel_common::supervisor::TaskSet;
use jiff::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::keep;
use crate::support::{self, A, TestWarden, assert_refused, eventually, header, status};

/// A message: its type byte, its length, its content.
fn message(letter: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len() + 4).unwrap().to_be_bytes();
    [&[letter][..], &length, content].concat()
}

/// The response to one statement: one row with one text column.
fn row(value: &str) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap().to_be_bytes();
    // One column of type text, not from a table.
    let column = [&[0, 1][..], b"x\0", &[0; 6], &25_u32.to_be_bytes(), &[0xff; 6], &[0; 2]].concat();
    let data = [&[0, 1][..], &length, value.as_bytes()].concat();
    [message(b'T', &column), message(b'D', &data), message(b'C', b"SHOW\0")].concat()
}

/// Serves one client: no TLS, no password, and three rows for every query.
async fn serve(mut client: TcpStream, version: &str) -> std::io::Result<()> {
    let ready = message(b'Z', b"I");
    loop {
        let mut packet = vec![0; client.read_u32().await? as usize - 4];
        client.read_exact(&mut packet).await?;
        // An SSLRequest; the startup message follows.
        if packet == 80_877_103_u32.to_be_bytes() {
            client.write_all(b"N").await?;
            continue;
        }
        let authenticated = message(b'R', &0_u32.to_be_bytes());
        let said = message(b'S', format!("server_version\0{version}\0").as_bytes());
        let key = message(b'K', &[0, 0, 0, 7, 0, 0, 0, 7]);
        client.write_all(&[authenticated, said, key, ready.clone()].concat()).await?;
        break;
    }
    loop {
        let letter = client.read_u8().await?;
        let mut packet = vec![0; client.read_u32().await? as usize - 4];
        client.read_exact(&mut packet).await?;
        if letter == b'X' {
            return Ok(());
        }
        assert_eq!(letter, b'Q', "an unknown server only gets simple queries");
        let answers = [row(version), row("UTF8"), row("7"), ready.clone()];
        client.write_all(&answers.concat()).await?;
    }
}

async fn start(tasks: &TaskSet, version: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tasks.spawn("old server", async move {
        while let Ok((client, _)) = listener.accept().await {
            // Ignore clients that disconnect.
            let _ = serve(client, version).await;
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_too_old_is_refused_and_agents_keep_their_entries() {
    let tasks = TaskSet::new();
    let sentence = "PostgreSQL is too old: it is 12.22; allowed: 13 or later";
    let url = format!("postgres://evenkeel:secret@127.0.0.1:{}/postgres", start(&tasks, "120022").await);
    let error = keep(&url).commit(Vec::new(), Timestamp::UNIX_EPOCH).await.unwrap_err();
    assert_eq!(error.to_string(), sentence);
    let warden = TestWarden::with_store(keep(&url));
    let refusal = warden.post(A, &support::entry(1)).await;
    assert_refused(&refusal, 503);
    assert_eq!(header(&refusal, "retry-after"), Some("5"));
    let store = warden.collector.store_state();
    eventually("the reason", || store.borrow().error() == Some(sentence)).await;
    assert_eq!(status(&warden.get("/health", "").await), 200);
    warden.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_postgresql_is_refused() {
    let tasks = TaskSet::new();
    let url = format!("postgres://evenkeel:secret@127.0.0.1:{}/postgres", start(&tasks, "ten").await);
    let error = keep(&url).commit(Vec::new(), Timestamp::UNIX_EPOCH).await.unwrap_err();
    assert_eq!(error.to_string(), "the server of store.url does not respond like PostgreSQL");
}
