//! A PostgreSQL server for tests, and the tests specific to that store. If PostgreSQL is not installed, these tests fail and
//! say what to install; `dist/test.sh` skips them and says so.

mod old;
mod real;
mod together;
mod trouble;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use evenkeel_common::clock::{Clock, SystemClock};
use evenkeel_common::supervisor::TaskSet;
use evenkeel_warden::config::StoreUrl;
use evenkeel_warden::keep::Keep;
use evenkeel_warden::keep::postgres::Postgres;
use parking_lot::Mutex;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/scripts/postgres.sh");

/// A dedicated server. It is stopped and its files are removed when this is dropped, or when the test ends in any other way.
pub(crate) struct Server {
    child: Child,
    /// Channel for commands and answers.
    control: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>>,
    pub(crate) port: u16,
    pub(crate) data: PathBuf,
    tasks: TaskSet,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with arguments for the script.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let mut child = Command::new(SCRIPT)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{SCRIPT}: {error}"));
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let Some((port, data)) = line.trim_end().split_once(' ') else {
            panic!("PostgreSQL did not start; what it takes stands above")
        };
        let (port, data) = (port.parse().unwrap(), Path::new(data).to_owned());
        let control = Mutex::new(Some((child.stdin.take().unwrap(), output)));
        Self { child, control, port, data, tasks: TaskSet::new() }
    }

    /// Runs a command: `stop`, `start`, `restart`, `fill` or `free`.
    pub(crate) fn tell(&self, command: &str) {
        assert_eq!(self.answer(command), "ok\n", "{command}");
    }

    /// Starts a hot standby of the server, and returns its URL.
    pub(crate) fn standby(&self) -> String {
        let answer = self.answer("standby");
        let port = answer.trim_end().strip_prefix("ok ").expect("a port");
        format!("postgres://evenkeel:secret@127.0.0.1:{port}/postgres")
    }

    fn answer(&self, command: &str) -> String {
        let mut control = self.control.lock();
        let (input, output) = control.as_mut().unwrap();
        writeln!(input, "{command}").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line
    }

    /// Returns its URL.
    pub(crate) fn text(&self) -> String {
        format!("postgres://evenkeel:secret@127.0.0.1:{}/postgres", self.port)
    }

    /// Returns a store in it.
    pub(crate) fn keep(&self) -> Arc<dyn Keep> {
        keep(&self.text())
    }

    /// Runs SQL, and returns the first column of the last row.
    pub(crate) async fn sql(&self, text: &str) -> String {
        let config: tokio_postgres::Config = self.text().parse().unwrap();
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.unwrap();
        self.tasks.spawn("connection", async {
            let _ = connection.await;
        });
        let answers = client.simple_query(text).await.unwrap();
        let rows = answers.iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        rows.last().unwrap_or_default().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        *self.control.lock() = None;
        let _ = self.child.wait();
    }
}

/// Returns a store in the database of this URL.
pub(crate) fn keep(url: &str) -> Arc<dyn Keep> {
    keep_by(url, Arc::new(SystemClock))
}

/// The same, on a machine with this clock.
pub(crate) fn keep_by(url: &str, clock: Arc<dyn Clock>) -> Arc<dyn Keep> {
    Arc::new(Postgres::new(StoreUrl::parse(url).unwrap(), clock))
}
