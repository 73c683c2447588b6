//! The same wizard on a terminal.

use expectrl::process::unix::WaitStatus;
use expectrl::session::OsSession;
use expectrl::{Eof, Expect, Session};

use super::*;

const OLD: &str = r#"{"api": {"port": "8080", "token": "$WARDEN_TOKEN"}, "agents": [{"id": "a", "url": "http://a:9090", "token": "$A_TOKEN"}]}"#;
const DOWN: &str = "\u{1b}[B";
const CTRL_C: &str = "\u{3}";

struct Terminal {
    session: OsSession,
    folder: TempDir,
}

impl Terminal {
    fn begin(term: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warden.json");
        fs::write(&path, OLD).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(["warden-config", "--config"]).arg(&path).env_clear().env("TERM", term);
        let mut session = Session::spawn(command).unwrap();
        session.set_expect_timeout(Some(WAIT_LIMIT));
        Self { session, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("warden.json")
    }

    /// Waits for `wanted` and returns the output up to and including it.
    fn expect(&mut self, wanted: &str) -> String {
        let found = self.session.expect(wanted).unwrap_or_else(|error| panic!("{wanted:?}: {error}"));
        String::from_utf8_lossy(found.as_bytes()).into_owned()
    }

    fn send(&mut self, keys: &str) {
        self.session.send(keys).unwrap();
    }

    /// Returns the remaining output and the exit code.
    fn end(mut self) -> (String, i32, TempDir) {
        let found = self.session.expect(Eof).unwrap();
        let rest = String::from_utf8_lossy(found.as_bytes()).into_owned();
        let WaitStatus::Exited(_, code) = self.session.get_process().wait().unwrap() else {
            panic!("killed")
        };
        (rest, code, self.folder)
    }
}

#[test]
fn an_agent_is_added_with_arrow_keys_and_its_secret_is_not_echoed() {
    let mut terminal = Terminal::begin("xterm-256color");
    terminal.expect("the token in $WARDEN_TOKEN");
    terminal.expect("What next?");
    terminal.send("\r");
    terminal.expect("Name of the machine");
    terminal.send("web-2\r");
    terminal.expect("Address of its API");
    terminal.send("10.0.0.6:9090\r");
    terminal.expect("The token of web-2");
    terminal.send(&format!("{DOWN}{DOWN}\r"));
    terminal.expect("Token (not shown)");
    terminal.send("typed-in-secret-0123456789\r");
    let mut said = terminal.expect("Address under which others reach this warden");
    terminal.send("\r");
    said += &terminal.expect("(the token that you entered)");
    said += &terminal.expect("What next?");
    // Save is the seventh of eight items.
    terminal.send(&DOWN.repeat(6));
    terminal.send("\r");
    let path = terminal.path();
    let (rest, code, _folder) = terminal.end();
    said += &rest;
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("was written"), "{said}");
    assert!(!said.contains("typed-in"), "{said}");
    let file: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(
        file["agents"][1],
        json!({"id": "web-2", "url": "http://10.0.0.6:9090", "token": "typed-in-secret-0123456789"})
    );
    assert_eq!(file["agents"][0]["token"], "$A_TOKEN");
}

#[test]
fn ctrl_c_leaves_the_old_file_and_escape_goes_back() {
    for steps in [&["What next?"][..], &["What next?", "Name of the machine"]] {
        let mut terminal = Terminal::begin("xterm-256color");
        for (n, step) in steps.iter().enumerate() {
            if n > 0 {
                terminal.send("\r");
            }
            terminal.expect(step);
        }
        terminal.send(CTRL_C);
        let path = terminal.path();
        let (said, code, _folder) = terminal.end();
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("left unchanged"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), OLD);
    }
    let mut terminal = Terminal::begin("xterm-256color");
    terminal.expect("What next?");
    terminal.send("\r");
    terminal.expect("Name of the machine");
    terminal.send("\u{1b}");
    terminal.expect("What next?");
    terminal.send(CTRL_C);
    assert_eq!(terminal.end().1, 1);
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_lines_and_hides_secrets_too() {
    let mut terminal = Terminal::begin("dumb");
    terminal.expect("1-8: ");
    terminal.send("1\r");
    terminal.expect("Name of the machine: ");
    terminal.send("web-2\r");
    terminal.expect("(empty for none): ");
    terminal.send("http://b\r");
    terminal.expect("1-3: ");
    terminal.send("3\r");
    terminal.expect("Token (not shown): ");
    terminal.send("typed-in-secret-0123456789\r");
    let said = terminal.expect("reach this warden");
    assert!(!said.contains("typed-in"), "{said}");
    terminal.send("\u{4}");
    let path = terminal.path();
    let (_, code, _folder) = terminal.end();
    assert_eq!((code, fs::read_to_string(&path).unwrap().as_str()), (1, OLD));
}
