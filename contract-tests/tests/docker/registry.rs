//! Registries that are down, slow, rate-limited or respond incorrectly.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use contract_tests::{Engine, Fault, Image, Nginx, Proxy, Registry, World, wait_for};
use evenkeel_common::wire::{Kind, StatusValue};
use serde_json::json;

#[test]
fn a_registry_that_is_down_is_an_error_until_it_is_back() {
    let (world, proxy, _) = World::behind_proxy("down");
    let agent = world.agent();
    let upstream = world.registry.host.clone();
    drop(proxy);
    assert_eq!(agent.check("web").event, Kind::TRIGGER_FAILED);
    let service = agent.service("web");
    assert_eq!(service.status, StatusValue::Errored, "{service:#?}");
    let text = agent.errored().remove("web").unwrap();
    assert_eq!(service.errored, Some(text.clone()));
    // A repeated error has the same text and is reported once.
    assert_eq!(agent.check("web").event, Kind::TRIGGER_FAILED);
    assert_eq!(agent.errored().remove("web"), Some(text));
    assert_eq!(agent.entries(&Kind::ERROR).len(), 1);
    world.assert_runs("web", "v1");

    let listener =
        wait_for("the port to be free", || TcpListener::bind(&world.host).map_err(|error| error.to_string()));
    let _proxy = Proxy::start_on(listener, &upstream);
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(agent.entries(&Kind::RECOVERED).len(), 1);
    assert_eq!(agent.errored().len(), 0);
    world.assert_runs("web", "v2");
}

#[test]
fn a_registry_that_hangs_delays_neither_other_registries_nor_the_api() {
    let (mut world, proxy, _) = World::behind_proxy("hang");
    let other = format!("{}/other:latest", world.registry.host);
    world.push("other", &Image::good("v1"));
    world.project.service("other", &other, &[]);
    world.project.up();
    let agent = world.agent_for([world.entry("web", &["web:latest"]), world.entry("other", &[&other])]);
    proxy.set(Fault::Hang);
    world.push("web", &Image::good("v2"));
    world.push("other", &Image::good("v2"));
    let began = Instant::now();
    agent.request("POST", "/trigger");
    wait_for("the service of the other registry to be updated", || {
        // While the agent waits for the other registry.
        agent
            .entries(&Kind::UPDATED)
            .into_iter()
            .find(|entry| entry.service == "other")
            .ok_or("not yet".to_owned())
    });
    wait_for("the requests to the hanging registry to time out", || {
        let errored = agent.errored();
        if errored.contains_key("web") { Ok(()) } else { Err(format!("{errored:?} {:?}", began.elapsed())) }
    });
    assert!(!agent.errored().contains_key("other"));
    world.assert_runs("other", "v2");
    world.assert_runs("web", "v1");
}

#[test]
fn a_registry_that_limits_requests_gets_none_until_retry_after() {
    let (world, proxy, _) = World::behind_proxy("limit");
    let agent = world.agent();
    let limit = vec![("Retry-After", "6".to_owned())];
    proxy.set(Fault::Answer(429, limit, "too many requests".to_owned()));
    assert_eq!(agent.check("web").event, Kind::TRIGGER_FAILED);
    let asked = (Instant::now(), proxy.manifest_requests());
    assert!(agent.errored()["web"].contains("429"), "{:?}", agent.errored());
    // Even a manual trigger does not send a request before the time in `Retry-After` has passed.
    assert_eq!(agent.check("web").event, Kind::TRIGGER_FAILED);
    if asked.0.elapsed() < Duration::from_secs(5) {
        assert_eq!(proxy.manifest_requests(), asked.1);
    }
    proxy.set(Fault::None);
    world.push("web", &Image::good("v2"));
    wait_for("the rate limit to end", || {
        agent.trigger("web");
        let errored = agent.errored();
        if errored.is_empty() { Ok(()) } else { Err(format!("{errored:?}")) }
    });
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

#[test]
fn a_registry_that_rejects_the_agent_is_an_error() {
    let (world, proxy, _) = World::behind_proxy("refused");
    let agent = world.agent();
    let challenge = vec![("WWW-Authenticate", "Basic realm=\"a \\\"quoted\\\", realm\"".to_owned())];
    proxy.set(Fault::Answer(401, challenge, "{}".to_owned()));
    assert_eq!(agent.check("web").event, Kind::TRIGGER_FAILED);
    assert_eq!(agent.service("web").status, StatusValue::Errored);
    world.assert_runs("web", "v1");
}

#[test]
fn a_registry_with_invalid_responses_changes_nothing() {
    let (world, proxy, _) = World::behind_proxy("nonsense");
    let before = world.project.container("web");
    let agent = world.agent();
    let digest = |text: &str| vec![("Docker-Content-Digest", text.to_owned())];
    let page = "<html><body>Welcome to the hotel's network</body></html>".to_owned();
    let zeros = format!("sha256:{}", "00".repeat(32));
    for fault in [
        Fault::Answer(200, Vec::new(), page.clone()),
        Fault::Answer(200, digest("sha256:zz"), page.clone()),
        Fault::Answer(200, digest(&zeros), page.clone()),
        Fault::Answer(200, Vec::new(), "x".repeat(6 << 20)),
        Fault::Answer(500, Vec::new(), "{\"errors\":".to_owned()),
        Fault::Answer(404, Vec::new(), "\u{1b}[31mnot here\u{7}".to_owned()),
    ] {
        proxy.set(fault.clone());
        agent.trigger("web");
        wait_for("the error to be reported", || {
            let errored = agent.errored();
            match errored.get("web") {
                Some(text) if text.chars().any(char::is_control) => panic!("control characters in {text:?}"),
                Some(_) => Ok(()),
                None => Err(format!("{fault:?}: {:#?}", agent.audit())),
            }
        });
        proxy.set(Fault::None);
        wait_for("the error to be cleared", || {
            agent.trigger("web");
            let errored = agent.errored();
            if errored.is_empty() { Ok(()) } else { Err(format!("{errored:?}")) }
        });
    }
    assert_eq!(world.assert_runs("web", "v1").id, before.id);
    assert_eq!(agent.blocked().len(), 0);
}

#[test]
fn an_image_whose_content_can_not_be_pulled_is_an_error_and_not_blocked() {
    let (world, proxy, _) = World::behind_proxy("content");
    let before = world.project.container("web");
    let agent = world.agent();
    proxy.set(Fault::NoBlobs);
    let v2 = world.push("web", &Image::good("v2"));
    agent.trigger("web");
    wait_for("the error to be reported", || {
        if agent.errored().contains_key("web") { Ok(()) } else { Err(format!("{:#?}", agent.audit())) }
    });
    agent.trigger("web");
    agent.wait_step("pull", 2);
    wait_for("the second attempt to end", || {
        if agent.service("web").deploying { Err("it deploys".to_owned()) } else { Ok(()) }
    });
    assert_eq!(agent.entries(&Kind::ERROR).len(), 1, "{:#?}", agent.audit());
    assert_eq!(agent.blocked().len(), 0);
    let after = world.assert_runs("web", "v1");
    assert_eq!(
        (&after.id, &after.started_at),
        (&before.id, &before.started_at),
        "the container was not touched"
    );
    assert_eq!(world.engine.image_id(&world.reference("web")), Some(before.image));

    proxy.set(Fault::None);
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    world.assert_runs("web", "v2");
    assert_eq!((agent.errored().len(), agent.entries(&Kind::RECOVERED).len()), (0, 1));
    world.assert_tidy();
}

#[test]
fn a_repository_that_answers_500_neither_delays_another_one_nor_is_reported_again_and_again() {
    let (mut world, proxy, _) = World::behind_proxy("repository-500");
    world.push("broken", &Image::good("v1"));
    world.service("broken", "broken", &[]);
    world.project.up();
    let agent =
        world.agent_for([world.entry("web", &["web:latest"]), world.entry("broken", &["broken:latest"])]);
    proxy.set(Fault::Repository("broken", 500));
    for _ in 0..3 {
        assert_eq!(agent.check("broken").event, Kind::TRIGGER_FAILED);
    }
    let texts = agent.entries(&Kind::ERROR);
    assert_eq!(texts.len(), 1, "a number that changes is no news: {texts:#?}");
    assert!(agent.service("broken").errored.is_some_and(|text| text.contains("500")), "{texts:#?}");
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(agent.service("web").errored, None, "another repository's error is not this one's");
}

/// `registry.url` names another registry; the engine uses loopback addresses without TLS.
#[test]
fn a_registry_without_tls_that_only_the_engine_knows_is_reached() {
    let (world, _) = World::with_web("insecure");
    let entry = world.entry("web", &[&format!("{}/web:latest", world.host)]);
    let config = world.config([entry]).set("registry.url", "https://registry.invalid");
    let agent = world.agent_with(config, &[]);
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
}

/// A folder of the engine's with the certificates that it trusts for one registry; removed on drop.
struct Trusted(PathBuf);

impl Trusted {
    fn of(host: &str, certificate: &Path) -> Self {
        let folder = Path::new("/etc/docker/certs.d").join(host);
        let made = fs::create_dir_all(&folder).and_then(|()| fs::copy(certificate, folder.join("ca.crt")));
        made.expect("root runs this test: /etc/docker/certs.d is where the engine looks for certificates");
        Self(folder)
    }
}

impl Drop for Trusted {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

mod nightly {
    use super::*;

    #[test]
    fn a_certificate_authority_that_only_the_engine_knows_is_trusted() {
        let mut world = World::new("certs-d");
        let proxy = format!("location / {{ proxy_pass http://{}; }}", world.registry.host);
        let nginx = Nginx::start_with_tls(&proxy);
        world.host = format!("localhost:{}", nginx.port());
        world.push("web", &Image::good("v1"));
        world.service("web", "web", &[]);
        let trusted = Trusted::of(&world.host, &nginx.certificate());
        world.project.up();
        let entry = || world.entry("web", &["web:latest"]);
        let config = || world.config([entry()]).set("registry.url", format!("https://{}", world.host));
        let agent = world.agent_with(config(), &[]);
        world.push("web", &Image::good("v2"));
        agent.trigger("web");
        agent.wait_entry(&Kind::UPDATED, 1);
        world.assert_runs("web", "v2");
        drop((agent, trusted));
        let agent = world.agent_with(config(), &[]);
        assert_eq!(agent.check("web").event, Kind::TRIGGER_FAILED);
        let text = agent.service("web").errored.expect("it is not trusted without the folder");
        assert!(text.contains("certificate"), "{text}");
    }
}

/// Asserts that the agent updates exactly once despite a faulty registry.
fn updates_in_spite_of(about: &str, fault: Fault) {
    let (world, proxy, v1) = World::behind_proxy(about);
    proxy.set(fault);
    let agent = world.agent();
    assert_eq!(agent.check("web").event, Kind::CHECKED, "nothing is new");
    let v2 = world.push("web", &Image::good("v2"));
    agent.trigger("web");
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(
        (entry.old_digest.as_deref(), entry.new_digest.as_deref()),
        (Some(&*v1.digest), Some(&*v2.digest))
    );
    agent.wait_done(1);
    for _ in 0..3 {
        assert_eq!(agent.check("web").event, Kind::CHECKED);
    }
    assert_eq!(agent.entries(&Kind::UPDATED).len(), 1);
    world.assert_runs("web", "v2");
}

#[test]
fn updates_work_without_digest_headers() {
    updates_in_spite_of("nodigest", Fault::NoDigest);
}

#[test]
fn wrong_digest_headers_do_not_cause_endless_deployments() {
    updates_in_spite_of("wrongdigest", Fault::WrongDigest(format!("sha256:{}", "ab".repeat(32))));
}

#[test]
fn updates_work_with_a_registry_that_rejects_head() {
    updates_in_spite_of("nohead", Fault::NoHead);
}

#[test]
fn the_login_of_the_docker_configuration_is_used() {
    let folder = tempfile::Builder::new().prefix("ektest-login-").tempdir().unwrap();
    let htpasswd = folder.path().join("htpasswd");
    // Password: secret
    let hash = "$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a";
    std::fs::write(&htpasswd, format!("tester:{hash}\n")).unwrap();
    let auth = base64::engine::general_purpose::STANDARD.encode("tester:secret");
    let registry = Registry::start_with_login(&htpasswd, &format!("Basic {auth}"));
    let mut world = World::with("login", &Engine::under_test(), registry);

    let docker = folder.path().join("docker");
    std::fs::create_dir(&docker).unwrap();
    let config = json!({ "auths": { world.host.clone(): { "auth": auth } } });
    std::fs::write(docker.join("config.json"), config.to_string()).unwrap();
    // Compose may be installed only for this user, and is then found in this folder.
    let usual = std::env::var_os("DOCKER_CONFIG").map_or_else(
        || std::path::PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".docker"),
        Into::into,
    );
    std::os::unix::fs::symlink(usual.join("cli-plugins"), docker.join("cli-plugins")).unwrap();
    let docker = docker.display().to_string();

    world.push("web", &Image::good("v1"));
    world.service("web", "web", &[]);
    world.engine.docker(&["--config", &docker, "pull", "-q", &world.reference("web")]);
    world.project.up();
    let config = world.config([world.entry("web", &["web:latest"])]);
    let stranger = world.agent_with(config.clone(), &[("DOCKER_CONFIG", "/nonexistent")]);
    assert_eq!(stranger.check("web").event, Kind::TRIGGER_FAILED);
    drop(stranger);
    let agent = world.agent_with(config, &[("DOCKER_CONFIG", &docker)]);
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert!(agent.log().iter().all(|line| !line.0.contains("secret") && !line.0.contains(&auth)));
}
