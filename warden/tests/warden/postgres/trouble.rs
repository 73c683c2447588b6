//! Unusable databases: each is reported in one sentence, the warden keeps running, and nothing is lost.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evenkeel_common::testing::wait_for_async;
use evenkeel_common::wire::FreezeScope;
use evenkeel_warden::fleet::decisions::Decision;
use evenkeel_warden::keep::{Change, Position, Query};
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{Server, keep};
use crate::support::{self, A, TestWarden, assert_refused, body, eventually, header, status};

/// Returns why a store refuses a write.
async fn refusal(url: &str) -> String {
    let error = keep(url).commit(Vec::new(), Timestamp::UNIX_EPOCH).await.unwrap_err().to_string();
    assert!(!error.contains("secret") && !error.contains("postgres://"), "{error}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_databases_are_reported_in_one_sentence() {
    let server = Server::start();
    let at = format!("127.0.0.1:{}", server.port);
    assert_eq!(
        refusal(&format!("postgres://evenkeel:wrong-secret@{at}/postgres")).await,
        "PostgreSQL rejects the user or the password of store.url"
    );
    assert_eq!(
        refusal(&format!("postgres://evenkeel@{at}/postgres")).await,
        "store.url has no password, but PostgreSQL requires one"
    );
    assert_eq!(
        refusal(&format!("postgres://evenkeel:secret@{at}/none")).await,
        "the database of store.url does not exist"
    );
    let tls = refusal(&format!("{}?sslmode=require", server.text())).await;
    assert!(tls.starts_with("PostgreSQL cannot be reached") && tls.contains("does not support TLS"), "{tls}");
    let authorities = refusal(&format!("{}?sslmode=verify-ca&sslrootcert=/nowhere", server.text())).await;
    assert!(authorities.starts_with("the sslrootcert of store.url cannot be read"), "{authorities}");
    let gone = refusal("postgres://evenkeel:secret@127.0.0.1:1/postgres").await;
    assert!(gone.starts_with("PostgreSQL cannot be reached: ") && gone.contains("refused"), "{gone}");

    server.sql("CREATE ROLE guest LOGIN PASSWORD 'secret'").await;
    server.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0").await;
    let guest = refusal(&format!("postgres://guest:secret@{at}/postgres")).await;
    assert!(guest.starts_with("the user of store.url may not create or use the schema evenkeel"), "{guest}");
    assert_eq!(
        refusal(&format!("postgres://evenkeel:secret@{at}/latin")).await,
        "the database of store.url has the encoding LATIN1; it must be UTF8"
    );
    server.sql("ALTER ROLE guest SET default_transaction_read_only = on").await;
    let replica = refusal(&format!("postgres://guest:secret@{at}/postgres")).await;
    assert!(replica.starts_with("PostgreSQL is read-only (a replica"), "{replica}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_a_later_version_are_left_alone_by_starting_and_running_wardens() {
    let server = Server::start();
    let running = server.keep();
    running.commit(Vec::new(), Timestamp::UNIX_EPOCH).await.unwrap();
    server.sql("UPDATE evenkeel.meta SET schema = 99").await;
    let sentence =
        "the tables in PostgreSQL have version 99, written by a newer evenkeel; this one supports up to 2";
    assert_eq!(refusal(&server.text()).await, sentence);
    let error = running.commit(Vec::new(), Timestamp::UNIX_EPOCH).await.unwrap_err();
    assert_eq!(error.to_string(), sentence);
    assert_eq!(server.sql("SELECT revision FROM evenkeel.meta").await, "1");
}

fn entry(seq: u64) -> Change {
    let text = format!(
        r#"{{"timestamp":"2026-01-02T03:04:05Z","machine":"a","service":"we\u0000b","event":"updated","message":"m","level":"info","seq":{seq},"epoch":"e","agent":"a"}}"#
    );
    Change::Entry(Box::new(serde_json::from_str(&text).unwrap()))
}

/// The server reports a full disk; the disk need not really be full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stores_nothing_of_a_batch_and_all_of_it_later() {
    let server = Server::start();
    let keep = server.keep();
    keep.commit(vec![entry(1)], Timestamp::UNIX_EPOCH).await.unwrap();
    server
        .sql(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$; \
             CREATE TRIGGER full_disk BEFORE UPDATE ON evenkeel.meta EXECUTE FUNCTION full_disk()",
        )
        .await;
    let error = keep.commit(vec![entry(2), entry(3)], Timestamp::UNIX_EPOCH).await.unwrap_err();
    assert_eq!(error.to_string(), "PostgreSQL's disk is full");
    assert_eq!(keep.tail(0, 10).await.unwrap().len(), 1, "stored entries can be read");
    server.sql("DROP TRIGGER full_disk ON evenkeel.meta").await;
    keep.commit(vec![entry(2), entry(3)], Timestamp::UNIX_EPOCH).await.unwrap();
    assert_eq!(keep.tail(0, 10).await.unwrap().len(), 3);
    let nul = Query { service: Some("we\0b".to_owned()), ..Query::default() };
    assert_eq!(keep.history(&nul).await.unwrap().entries.len(), 3, "a NUL in a name harms nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warden_starts_without_its_database_and_continues_once_it_is_up() {
    let server = Server::start();
    server.tell("stop");
    let warden = TestWarden::with_store(server.keep());
    let refusal = warden.post(A, &support::entry(1)).await;
    assert_refused(&refusal, 503);
    assert_eq!(header(&refusal, "retry-after"), Some("5"));
    let health = warden.get("/health", "").await;
    assert_eq!((status(&health), body(&health)), (200, r#"{"status":"ok","store":"away"}"#));
    let store = warden.collector.store_state();
    let error = store.borrow().error().unwrap().to_owned();
    assert!(error.starts_with("PostgreSQL cannot be reached: "), "{error}");
    let user = format!("authorization: Bearer {}\r\n", support::API_TOKEN);
    let health: serde_json::Value = serde_json::from_str(body(&warden.get("/health", &user).await)).unwrap();
    assert_eq!(health["error"], error, "users see the reason");
    server.tell("start");
    eventually("the store is back", || store.borrow().error().is_none()).await;
    assert_eq!(status(&warden.post(A, &support::entry(1)).await), 200);
    assert_eq!(body(&warden.get("/health", "").await), r#"{"status":"ok"}"#);
    // It restarts between two requests.
    server.tell("restart");
    let start = Instant::now();
    while status(&warden.post(A, &support::entry(2)).await) != 200 {
        assert!(start.elapsed() < Duration::from_secs(30), "it does not come back");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(server.sql("SELECT count(*) FROM evenkeel.entries").await, "2");
    warden.finish().await;
}

/// The database is restored from a backup, or a standby without the last changes takes over, while wardens run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_goes_back_is_read_again_from_its_beginning() {
    let server = Server::start();
    let warden = TestWarden::with_store(server.keep());
    let until = Timestamp::now() + SignedDuration::from_hours(1);
    let freeze =
        |reason: &str| Decision::Freeze { reason: reason.to_owned(), until, scope: FreezeScope::default() };
    let reasons = || {
        let freezes = warden.collector.decisions_for("a").freezes.into_iter();
        freezes.map(|freeze| freeze.reason).collect::<Vec<_>>()
    };
    let store = warden.collector.store_state();
    eventually("the store is read", || store.borrow().error().is_none()).await;
    warden.collector.decide(freeze("kept")).await.unwrap();
    let tables = ["meta", "state", "machines", "entries", "owners", "agents"];
    for table in tables {
        server.sql(&format!("CREATE TABLE saved_{table} AS TABLE evenkeel.{table}")).await;
    }
    warden.collector.decide(freeze("lost")).await.unwrap();
    assert_eq!(reasons(), ["kept", "lost"]);
    let restore = tables.map(|table| {
        format!("DELETE FROM evenkeel.{table}; INSERT INTO evenkeel.{table} TABLE saved_{table}; ")
    });
    server.sql(&format!("BEGIN; {} COMMIT", restore.concat())).await;
    eventually("the lost freeze is gone", || reasons() == ["kept"]).await;
    warden.collector.decide(freeze("later")).await.unwrap();
    assert_eq!(reasons(), ["kept", "later"]);
    warden.finish().await;
}

/// Another server may have taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_read_over_a_new_connection_has_its_number() {
    let server = Server::start();
    let keep = server.keep();
    let number = async || keep.news(Position::default(), 1).await.map(|news| news.connection);
    let first = number().await.unwrap();
    assert_eq!(number().await.unwrap(), first);
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    assert_ne!(server.sql(end).await, "0");
    wait_for_async("a new connection", async || match number().await {
        Ok(number) if number != first => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// A pgbouncer in front of a server.
struct Pooler {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Pooler {
    fn start(server: &Server, mode: &str) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let config = format!(
            "[databases]\npostgres = host=127.0.0.1 port={} user=evenkeel password=secret\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n\
             auth_file = {}\npool_mode = {mode}\nignore_startup_parameters = extra_float_digits\n",
            server.port,
            folder.path().join("users").display()
        );
        fs::write(folder.path().join("users"), "\"evenkeel\" \"secret\"\n").unwrap();
        fs::write(folder.path().join("config"), config).unwrap();
        let mut command = Command::new("pgbouncer");
        command.arg("-q").arg(folder.path().join("config")).stderr(Stdio::null());
        if rustix::process::getuid().is_root() {
            // It refuses to run as root.
            command.uid(65534).gid(65534);
        }
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let child = command.env("PATH", path).spawn();
        Self {
            child: child.expect("pgbouncer is needed; on Debian: apt-get install pgbouncer"),
            port,
            _folder: folder,
        }
    }

    fn url(&self) -> String {
        format!("postgres://evenkeel:secret@127.0.0.1:{}/postgres", self.port)
    }

    async fn refusal(&self) -> Option<String> {
        let keep = keep(&self.url());
        let start = Instant::now();
        loop {
            match keep.commit(Vec::new(), Timestamp::UNIX_EPOCH).await {
                Ok(_) => return None,
                Err(error) if !error.0.contains("cannot be reached") => return Some(error.0),
                Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_in_transaction_mode_is_refused_and_one_in_session_mode_is_not() {
    let server = Server::start();
    let refusal = Pooler::start(&server, "transaction").refusal().await.unwrap();
    assert!(refusal.starts_with("there is a pooler in transaction mode in front of PostgreSQL"), "{refusal}");
    assert_eq!(Pooler::start(&server, "session").refusal().await, None);
}

fn pem(what: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
}

/// The server has a certificate for `localhost` from its own authority.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sslmode_verifies_the_certificate_as_specified() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let authority = || {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params, KeyPair::generate().unwrap())
    };
    let ((params, key), (other, other_key)) = (authority(), authority());
    let server_key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&server_key, &Issuer::from_params(&params, &key)).unwrap();
    let server = Server::start();
    let (good, wrong) = (server.data.join("good.pem"), server.data.join("wrong.pem"));
    fs::write(&good, pem("CERTIFICATE", params.self_signed(&key).unwrap().der())).unwrap();
    fs::write(&wrong, pem("CERTIFICATE", other.self_signed(&other_key).unwrap().der())).unwrap();
    fs::write(server.data.join("server.crt"), pem("CERTIFICATE", certificate.der())).unwrap();
    fs::write(server.data.join("server.key"), pem("PRIVATE KEY", &server_key.serialize_der())).unwrap();
    fs::set_permissions(server.data.join("server.key"), fs::Permissions::from_mode(0o600)).unwrap();
    server.sql("ALTER SYSTEM SET ssl = on").await;
    server.tell("restart");

    let url = |host: &str, options: String| {
        format!("postgres://evenkeel:secret@{host}:{}/postgres?{options}", server.port)
    };
    let with = |file: &Path| format!("sslrootcert={}", file.display());
    for options in ["", "sslmode=disable", "sslmode=prefer", "sslmode=require"] {
        keep(&url("127.0.0.1", options.to_owned())).commit(Vec::new(), Timestamp::UNIX_EPOCH).await.unwrap();
    }
    for (host, mode) in [("127.0.0.1", "require"), ("127.0.0.1", "verify-ca"), ("localhost", "verify-full")] {
        let good = keep(&url(host, format!("sslmode={mode}&{}", with(&good))));
        good.commit(Vec::new(), Timestamp::UNIX_EPOCH).await.unwrap();
        let error = refusal(&url(host, format!("sslmode={mode}&{}", with(&wrong)))).await;
        assert!(error.contains("TLS handshake") && error.contains("certificate"), "{mode}: {error}");
    }
    let error = refusal(&url("127.0.0.1", format!("sslmode=verify-full&{}", with(&good)))).await;
    assert!(error.contains("not valid for name"), "{error}");
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND \
        application_name = 'evenkeel-warden'";
    let held = keep(&url("127.0.0.1", "sslmode=prefer".to_owned()));
    held.commit(Vec::new(), Timestamp::UNIX_EPOCH).await.unwrap();
    assert_ne!(server.sql(encrypted).await, "0", "TLS is used where it is offered");
}
