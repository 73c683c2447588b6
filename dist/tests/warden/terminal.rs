//! The same conversation as a person at a terminal has it.

use expectrl::process::unix::WaitStatus;
use expectrl::session::OsSession;
use expectrl::{Eof, Expect, Session};

use super::*;

const OLD: &str = r#"{"api": {"port": "8080", "token": "$WARDEN_TOKEN"}, "agents": [{"id": "a", "url": "http://a:9090", "token": "$A_TOKEN"}]}"#;
const DOWN: &str = "\u{1b}[B";
const CTRL_C: &str = "\u{3}";

struct Sitting {
    session: OsSession,
    folder: TempDir,
}

impl Sitting {
    fn begin(term: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warden.json");
        fs::write(&path, OLD).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(["warden-config", "--config"]).arg(&path).env_clear().env("TERM", term);
        let mut session = Session::spawn(command).unwrap();
        session.set_expect_timeout(Some(LONG));
        Self { session, folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("warden.json")
    }

    /// Waits for a text; gives what came before it and it.
    fn sees(&mut self, wanted: &str) -> String {
        let found = self.session.expect(wanted).unwrap_or_else(|error| panic!("{wanted:?}: {error}"));
        String::from_utf8_lossy(found.as_bytes()).into_owned()
    }

    fn types(&mut self, keys: &str) {
        self.session.send(keys).unwrap();
    }

    /// All that is still said, and the exit code.
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
    let mut sitting = Sitting::begin("xterm-256color");
    sitting.sees("the token in $WARDEN_TOKEN");
    sitting.sees("What next?");
    sitting.types("\r");
    sitting.sees("Name of the machine");
    sitting.types("web-2\r");
    sitting.sees("Address of its API");
    sitting.types("10.0.0.6:9090\r");
    sitting.sees("The token of web-2");
    sitting.types(&format!("{DOWN}{DOWN}\r"));
    sitting.sees("Token (not shown)");
    sitting.types("typed-in-secret-0123456789\r");
    let mut said = sitting.sees("Address under which others reach this warden");
    sitting.types("\r");
    said += &sitting.sees("(the token that you entered)");
    said += &sitting.sees("What next?");
    // Save is the second from the end of eight.
    sitting.types(&DOWN.repeat(6));
    sitting.types("\r");
    let path = sitting.path();
    let (rest, code, _folder) = sitting.end();
    said += &rest;
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("is written"), "{said}");
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
        let mut sitting = Sitting::begin("xterm-256color");
        for (n, step) in steps.iter().enumerate() {
            if n > 0 {
                sitting.types("\r");
            }
            sitting.sees(step);
        }
        sitting.types(CTRL_C);
        let path = sitting.path();
        let (said, code, _folder) = sitting.end();
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("left as it was"), "{said}");
        assert_eq!(fs::read_to_string(&path).unwrap(), OLD);
    }
    let mut sitting = Sitting::begin("xterm-256color");
    sitting.sees("What next?");
    sitting.types("\r");
    sitting.sees("Name of the machine");
    sitting.types("\u{1b}");
    sitting.sees("What next?");
    sitting.types(CTRL_C);
    assert_eq!(sitting.end().1, 1);
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_lines_and_hides_secrets_too() {
    let mut sitting = Sitting::begin("dumb");
    sitting.sees("1-8: ");
    sitting.types("1\r");
    sitting.sees("Name of the machine: ");
    sitting.types("web-2\r");
    sitting.sees("9090: ");
    sitting.types("http://b\r");
    sitting.sees("1-3: ");
    sitting.types("3\r");
    sitting.sees("Token (not shown): ");
    sitting.types("typed-in-secret-0123456789\r");
    let said = sitting.sees("reach this warden");
    assert!(!said.contains("typed-in"), "{said}");
    sitting.types("\u{4}");
    let path = sitting.path();
    let (_, code, _folder) = sitting.end();
    assert_eq!((code, fs::read_to_string(&path).unwrap().as_str()), (1, OLD));
}
