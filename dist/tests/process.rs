//! The shipped program as a process: exit codes and output (DECISIONS 2).

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

fn evenkeel(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(arguments)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .expect("the program is built")
}

fn check(config: &Path) -> (Option<i32>, String) {
    check_with(config, &[])
}

fn check_with(config: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let check = ["--check", "--config", config.to_str().expect("a path of this test")];
    let output = evenkeel(&[&check[..], flags].concat());
    (output.status.code(), String::from_utf8(output.stderr).expect("messages are text"))
}

fn folder_with(config: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config.json"), config).expect("a file");
    folder
}

#[test]
fn a_valid_file_is_reported_and_the_code_is_0() {
    let folder = folder_with("{}");
    let path = folder.path().join("config.json");
    let (code, said) = check(&path);
    assert_eq!(code, Some(0), "{said}");
    let watched = "watching nothing: no services are listed (`evenkeel adopt` prints those of this machine)";
    assert_eq!(said, format!("{}: valid; warnings: 0; {watched}\n", path.display()));
    let (code, _) = check_with(&path, &["--strict"]);
    assert_eq!(code, Some(0), "nothing is left out");
}

#[test]
fn a_check_reads_the_variables_of_the_unit_beside_the_file() {
    let folder = folder_with(r#"{"notifications": {"discord": {"webhook_url": "$DISCORD"}}}"#);
    let path = folder.path().join("config.json");
    let (code, said) = check(&path);
    assert!(code == Some(0) && said.contains("DISCORD is not set (discord is off)"), "{said}");
    let variables = folder.path().join("agent.env");
    fs::write(&variables, "DISCORD=https://discord.example/api/webhooks/1/a\n").expect("a file");
    let (code, said) = check(&path);
    let note = format!(
        "{}: note: variables that are not set here are read from {}, as by the systemd unit\n",
        path.display(),
        variables.display()
    );
    assert!(code == Some(0) && said.contains(&note) && said.contains("valid; warnings: 0; "), "{said}");
}

#[test]
fn services_that_are_left_out_are_named_last_and_a_strict_check_fails() {
    let folder = folder_with(
        r#"{"services": [{"name": "web", "container_name": "web"}, {"name": "blog", "compose_files": ["blog.yml"]}]}"#,
    );
    let path = folder.path().join("config.json");
    let last = "warnings: 1; watching 1 of 2 services; not watched: blog (compose_files[0]: \"blog.yml\" is not absolute; \
                allowed: the absolute path of a regular file, not of a link to one)\n";
    for (flags, expected) in [(&[][..], 0), (&["--strict"], 1)] {
        let (code, said) = check_with(&path, flags);
        assert_eq!(code, Some(expected), "{said}");
        assert!(said.ends_with(&format!("{}: {last}", path.display())), "{said}");
    }
}

#[test]
fn all_faults_and_warnings_are_printed_and_the_code_is_78() {
    let folder = folder_with(
        r#"{"registry": {"poll_interval": 0}, "runtime": "lxc", "service": [], "services": [{"name": "a b"}]}"#,
    );
    let path = folder.path().join("config.json");
    let shown = path.display();
    let expected = format!(
        "{shown}: registry.poll_interval: 0 is out of range; allowed: a whole number of seconds from 10 to 86400, or a duration such as \"90s\", \"15m\", \"12h\", \"3d\"\n\
         {shown}: runtime: \"lxc\" is not a valid value; allowed: docker, podman\n\
         {shown}: warning: service: is not a known key and is ignored; did you mean \"services\"?\n\
         {shown}: warning: services[0].name: \"a b\"; allowed: 1 to 64 letters, digits, \"_\", \".\" and \"-\" (service skipped)\n"
    );
    let (code, said) = check(&path);
    assert_eq!((code, said.as_str()), (Some(78), expected.as_str()));
    // Without --check the start fails with the same output.
    let output = evenkeel(&["--mode", "agent", "--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(78));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
}

#[test]
fn warnings_alone_do_not_change_the_code() {
    let folder = folder_with(r#"{"api": {"address": [":9090"]}}"#);
    let (code, said) = check(&folder.path().join("config.json"));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning: api.address: \":9090\" can be reached from other machines"), "{said}");
    assert!(said.contains(": valid; warnings: 1; watching nothing"), "{said}");
}

#[test]
fn an_unreadable_file_is_a_configuration_error() {
    let folder = folder_with("{\"a\": }");
    let path = folder.path().join("config.json");
    let (code, said) = check(&path);
    assert_eq!(code, Some(78));
    assert_eq!(
        said,
        format!("{}: is not JSON: line 1, column 7: expected value, found \"}}\"\n", path.display())
    );
    for (path, expected) in [
        (folder.path().join("none"), "there is no such file"),
        (folder.path().to_owned(), "is a directory; allowed: a regular file"),
        ("/dev/zero".into(), "is a device; allowed: a regular file"),
    ] {
        let (code, said) = check(&path);
        assert_eq!((code, said), (Some(78), format!("{}: {expected}\n", path.display())));
    }
}

#[test]
fn invalid_flags_have_their_own_exit_code() {
    for arguments in [&["--konfig", "x"][..], &["--mode", "pilot"], &["--log-format", "xml"], &["extra"]] {
        let output = evenkeel(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("try '--help'"), "{arguments:?}");
    }
}

#[test]
fn help_and_version_work_without_a_configuration() {
    let help = evenkeel(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let help = String::from_utf8(help.stdout).unwrap();
    for flag in ["--mode", "--config", "--check", "--log-format", "--verbose", "/etc/evenkeel/config.json"] {
        assert!(help.contains(flag), "{flag} is not in: {help}");
    }
    assert_eq!(evenkeel(&["--version"]).status.code(), Some(0));
}

#[test]
fn a_closed_stderr_does_not_cause_a_panic() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["--check", "--config", "/nonexistent"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(78));
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).expect("text")
}

#[test]
fn completions_and_manual_pages_match_the_command_line() {
    let help = text(&evenkeel(&["--help"]).stdout);
    let subcommands: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    assert!(
        ["doctor", "adopt", "why", "freeze", "completions", "man"]
            .iter()
            .all(|name| subcommands.contains(name))
    );

    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = evenkeel(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = text(&output.stdout);
        for name in &subcommands {
            assert!(script.contains(name), "{shell} does not complete {name}");
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let all = folder.path().join("man1");
    assert_eq!(evenkeel(&["man", "--all", all.to_str().unwrap()]).status.code(), Some(0));
    assert_eq!(fs::read(all.join("evenkeel.1")).unwrap(), evenkeel(&["man"]).stdout);
    for name in &subcommands {
        let page = fs::read(all.join(format!("evenkeel-{name}.1"))).expect("each subcommand has a page");
        assert_eq!(page, evenkeel(&["man", name]).stdout, "{name}");
        assert!(text(&page).contains(".SH SYNOPSIS"), "{name}");
    }
}

#[test]
fn bash_can_use_its_completions() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("evenkeel");
    fs::write(&script, evenkeel(&["completions", "bash"]).stdout).expect("a file");
    let ask = format!(
        "source {}; COMP_WORDS=(evenkeel tha); COMP_CWORD=1; _evenkeel evenkeel tha evenkeel; echo \"${{COMPREPLY[@]}}\"",
        script.display()
    );
    let output = Command::new("bash").args(["--norc", "-c", &ask]).output().expect("bash");
    assert_eq!(text(&output.stdout), "thaw\n", "{}", text(&output.stderr));
}

#[test]
fn an_unavailable_manual_page_is_an_error() {
    let output = evenkeel(&["man", "nope"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.starts_with("evenkeel: no subcommand \"nope\"; available: test-notify, doctor, "), "{said}");
    let output = evenkeel(&["man", "--all", "/proc/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.starts_with("evenkeel: cannot write: /proc/nowhere: "), "{said}");
}

/// What follows a `$` that is no variable may be the rest of a password.
#[test]
fn check_shows_nothing_of_a_password_that_contains_a_dollar_sign() {
    let password = "pa$sw0rd-Rest";
    let agent = json!({
        "push": {"warden_url": "http://127.0.0.1:1", "token": password},
        "registry": {"url": "https://registry.example.com"},
        "notifications": {
            "discord": {"webhook_url": format!("https://discord.com/api/webhooks/1/{password}")},
            "smtp": {"host": "mail.example.com", "port": 25, "from": "a@example.com", "to": ["b@example.com"],
                     "username": "u", "password": password},
            "webhooks": [{"name": "x", "url": format!("https://example.com/{password}"),
                          "headers": {"Authorization": format!("Bearer {password}")}}],
        },
    });
    let warden = json!({
        "api": {"port": 1, "token": password},
        "agents": [{"id": "a", "url": format!("http://u:{password}@127.0.0.1:2"), "token": password}],
        "store": {"url": format!("postgres://u:{password}@127.0.0.1/x")},
    });
    for (flags, config, keys) in [
        (
            &[][..],
            agent,
            &["push.token", "notifications.discord", "notifications.smtp", "notifications.webhooks"][..],
        ),
        (&["--mode", "warden"], warden, &["api.token", "agents[0]", "store.url"]),
    ] {
        let folder = folder_with(&config.to_string());
        let (_, said) = check_with(&folder.path().join("config.json"), flags);
        for part in ["sw0rd", "Rest"] {
            assert!(!said.contains(part), "{said}");
        }
        for key in keys {
            assert!(said.contains(key), "{key}: {said}");
        }
        assert!(said.contains("$$"), "how to write it: {said}");
    }
}

/// The agent reaches the same warden through it.
#[test]
fn a_warden_on_another_machine_is_asked_through_the_proxy() {
    let ((proxy, of_proxy), (warden, of_warden)) = (refusing(), refusing());
    // Connects to this machine, and is no loopback address.
    let warden = format!("0.0.0.0:{}", warden.port());
    for (address, requests, expected) in [
        ("warden.invalid:8080", &of_proxy, "GET http://warden.invalid:8080/fleet/images HTTP/1.1\r\n"),
        (warden.as_str(), &of_warden, "GET /fleet/images HTTP/1.1\r\n"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
            .args(["fleet", "--warden", &format!("http://{address}")])
            .env_clear()
            .env("EVENKEEL_TOKEN", "0123456789abcdef")
            .env("HTTP_PROXY", format!("http://{proxy}"))
            .env("NO_PROXY", format!("*.corp.example,{warden}"))
            .stdin(Stdio::null())
            .output()
            .expect("the program is built");
        let said = String::from_utf8_lossy(&output.stderr);
        let line = requests.recv_timeout(Duration::from_secs(10));
        assert_eq!(line.as_deref(), Ok(expected), "{said}");
    }
}

/// A server that refuses its first request, and the first line of that.
fn refusing() -> (SocketAddr, mpsc::Receiver<String>) {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = server.local_addr().expect("its address");
    let (seen, requests) = mpsc::channel();
    thread::spawn(move || {
        let (mut stream, _) = server.accept().expect("a request");
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).expect("its first line");
        let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
        let _ = seen.send(line);
    });
    (address, requests)
}
