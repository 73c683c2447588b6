//! Mail to a real server, aiosmtpd.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{stdout, test_notify};

fn pem(what: &str, der: &[u8]) -> String {
    let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, der);
    let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
}

struct MailServer {
    child: Child,
    lines: BufReader<ChildStdout>,
    port: u16,
    /// Holds `cert.pem`.
    folder: TempDir,
}

impl MailServer {
    fn start(mode: &str) -> Self {
        Self::with_certificate(mode, rcgen::IsCa::NoCa)
    }

    fn with_certificate(mode: &str, kind: rcgen::IsCa) -> Self {
        let tools = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mail-server");
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let script = here.join("../dist/scripts/bring-mail-server.sh");
        let brought = Command::new("bash").arg(&script).arg(&tools).status();
        assert!(
            brought.is_ok_and(|status| status.success()),
            "there is no mail server to test with; run: bash dist/scripts/bring-mail-server.sh {}",
            tools.display()
        );
        let folder = TempDir::new().unwrap();
        let mut parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        parameters.is_ca = kind;
        let signing_key = rcgen::KeyPair::generate().unwrap();
        let made = parameters.self_signed(&signing_key).unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        std::fs::write(&cert, pem("CERTIFICATE", made.der())).unwrap();
        std::fs::write(&key, pem("PRIVATE KEY", &signing_key.serialize_der())).unwrap();
        let mut child = Command::new(tools.join("bin/python"))
            .arg(here.join("tests/delivery/mail_server.py"))
            .arg(mode)
            .args([cert, key])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut port = String::new();
        lines.read_line(&mut port).unwrap();
        Self { child, lines, port: port.trim().parse().unwrap(), folder }
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for MailServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn smtp(server: &MailServer, tls: &str, password: &str) -> Value {
    json!({ "notifications": { "smtp": {
        "host": "localhost", "port": server.port, "from": "Evenkeel <e@a.example>", "to": "x@b.example, y@b.example",
        "username": "user", "password": password, "tls": tls,
    } } })
}

#[test]
fn mail_reaches_a_real_server_with_starttls_and_login() {
    mail_reaches_a_real_server("starttls", "auto");
}

#[test]
fn mail_reaches_a_real_server_with_implicit_tls() {
    mail_reaches_a_real_server("implicit", "implicit");
}

fn mail_reaches_a_real_server(mode: &str, other: &str) {
    let mut server = MailServer::start(mode);
    let certificate = server.folder.path().join("cert.pem").display().to_string();
    let trusting = vec![("SSL_CERT_FILE", certificate.as_str())];
    let (good, wrong) = (smtp(&server, mode, "pass word"), smtp(&server, other, "secret-guess"));
    let open = smtp(&server, "none", "pass word");
    let output = test_notify(&good, None, &trusting);
    assert!(output.status.success(), "{output:?}");
    assert!(
        ["x", "y"].iter().all(|to| stdout(&output)
            .contains(&format!("smtp/{to}@b.example: sent; the answer was: 250 accepted by the test"))),
        "{output:?}"
    );
    let mail = server.next();
    assert_eq!((&mail["tls"], &mail["authenticated"]), (&json!(true), &json!(true)));
    assert_eq!((&mail["from"], &mail["to"]), (&json!("e@a.example"), &json!(["x@b.example"])));
    let headers = mail["headers"].as_array().unwrap();
    let header = |name: &str| {
        let found: Vec<_> =
            headers.iter().filter(|header| header[0] == name).map(|header| &header[1]).collect();
        assert_eq!(found.len(), 1, "{name} in {headers:?}");
        found[0].as_str().unwrap().to_owned()
    };
    assert!(header("Subject").starts_with("[info] updated: evenkeel on "), "{}", header("Subject"));
    assert!(header("Message-ID").starts_with('<') && !header("Date").is_empty());
    assert!(mail["plain"].as_str().unwrap().contains("this is a test: nothing has changed"), "{mail}");
    assert!(mail["html"].as_str().unwrap().contains("<p>this is a test: nothing has changed</p>"), "{mail}");

    for (case, config, environment, expected) in [
        ("a wrong password", &wrong, trusting, "535"),
        ("an untrusted certificate", &good, vec![], "not signed by an authority"),
    ] {
        assert_not_sent(case, &test_notify(config, None, &environment), expected);
    }
    // With implicit TLS, client and server would both wait for the other to begin.
    if mode == "starttls" {
        let output = test_notify(&open, None, &[]);
        assert_not_sent("no encryption although the server requires it", &output, "authentication mechanism");
    }
}

/// What `openssl req -x509` makes by default.
#[test]
fn a_ca_used_as_a_server_certificate_is_named_with_the_key_to_change() {
    let kind = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let server = MailServer::with_certificate("starttls", kind);
    let certificate = server.folder.path().join("cert.pem").display().to_string();
    let trusting = [("SSL_CERT_FILE", certificate.as_str())];
    let output = test_notify(&smtp(&server, "starttls", "secret"), None, &trusting);
    assert_not_sent("a CA's certificate", &output, "it is a CA's own certificate");
    let text = stdout(&output);
    assert!(text.contains("smtp.tls") && !text.contains("CaUsedAsEndEntity"), "{text}");
}

fn assert_not_sent(case: &str, output: &Output, expected: &str) {
    assert_eq!(output.status.code(), Some(1), "{case}: {output:?}");
    let text = stdout(output);
    assert!(text.starts_with("smtp/x@b.example: FAILED: ") && text.contains(expected), "{case}: {text}");
    assert!(!text.contains("secret"), "{case}: {text}");
}
