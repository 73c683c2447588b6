//! The pages behind a real nginx, as people set it up (DECISIONS 6).

use std::io::{Read, Write};
use std::net::TcpListener;

use contract_tests::{Agent, Browser, Config, Nginx, Service, Warden};
use serde_json::json;
use tempfile::TempDir;

use crate::scene::ago;

const LIVE: &str = "document.body.dataset.link === 'live'";

/// Ways to forward to a program that people copy from manuals. The first one forwards the name without the port.
const FORWARDING: [&str; 4] = [
    "proxy_set_header Host $host;",
    "proxy_set_header Host $http_host;",
    // nginx sends the address of the program.
    "",
    "proxy_set_header Host $host; proxy_set_header X-Real-IP $remote_addr;
     proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Host $host;
     proxy_set_header X-Forwarded-Port 80; proxy_set_header X-Forwarded-Proto $scheme;",
];

/// All of them with `EVENKEEL_EVERY_CALL`, as in `dist/test.sh --all`; otherwise those that differ most.
fn some_forwarding() -> Vec<&'static str> {
    let all = std::env::var_os("EVENKEEL_EVERY_CALL").is_some();
    let wanted = |n: &usize| all || [0, FORWARDING.len() - 1].contains(n);
    (0..FORWARDING.len()).filter(wanted).map(|n| FORWARDING[n]).collect()
}

fn agent(change: impl FnOnce(Config) -> Config) -> Agent {
    Agent::without_engine("proxied", |folder| {
        change(Config::of([Service::idle("idle", folder)]).registry("127.0.0.1:9"))
    })
}

fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix(&format!("{}proxied-", contract_tests::PREFIX))
        .tempdir()
        .expect("a temporary folder can be created")
}

fn location(path: &str, address: &str, more: &str) -> String {
    format!("location {path} {{ proxy_pass http://{address}; {more} }}")
}

fn browser() -> Browser {
    let browser = Browser::start();
    // The status of /health without an engine, that of the login form, and streams that are cut when their nginx stops.
    browser.allow_console_errors(&["status of 503", "status of 401", "net::ERR_"]);
    browser
}

/// Opens the agent's page, waits for its stream, and uses a button.
fn use_agent(browser: &Browser, url: &str) {
    browser.open(url);
    browser.wait("live", LIVE);
    browser.wait("the row", "document.querySelectorAll('#rows > tr').length === 1");
    browser.click("#check-all");
    browser.wait_notice("A check of all services has started.");
    browser.wait("the entry", "document.querySelector('#events').innerText.includes('manual trigger')");
    browser.click("#rows .fold:nth-child(4)");
    browser.wait("the answer to why", "document.querySelector('.gates > li')");
}

/// Logs in by the form, waits for a live entry, and freezes the fleet.
fn use_warden(browser: &Browser, url: &str, warden: &Warden, seq: u32, path: &str) {
    browser.open(&format!("{url}?level=info"));
    browser.wait("the form", "document.activeElement.id === 'token'");
    browser.write("#token", Warden::TOKEN);
    browser.click("form .button");
    browser.wait("the dashboard", "document.querySelectorAll('#machines > li').length === 1");
    browser.wait("live", LIVE);
    assert_eq!(browser.url(), format!("{url}?level=info"));
    let message = format!("entry {seq}");
    let entry = json!({ "timestamp": ago(0), "service": "shop", "event": "restarted", "level": "info",
        "message": message, "seq": seq });
    let token = format!("Bearer {}", Warden::agent_token("home"));
    let headers = [("Authorization", token.as_str()), ("Content-Type", "application/json")];
    let sent = contract_tests::request(
        warden.address(),
        "POST",
        &format!("{path}/ingest"),
        &headers,
        entry.to_string().as_bytes(),
    );
    assert_eq!(sent.expect("the warden answers").status, 200);
    browser.wait(
        "the live entry",
        &format!("document.querySelector('#events').innerText.includes('{message}')"),
    );
    browser.click("#freeze");
    browser.write("#freeze-form [name=reason]", "trade fair");
    browser.click("#freeze-yes");
    browser.wait_notice("Updates are frozen.");
    browser.wait("the freeze", "document.querySelectorAll('#freezes > li').length >= 1");
}

/// Returns the cookies of the page, which scripts can't read.
fn cookies(browser: &Browser) -> Vec<serde_json::Value> {
    let all = browser.devtools("Network.getCookies", &json!({}));
    all["cookies"].as_array().cloned().unwrap_or_default()
}

#[test]
fn the_agents_page_works_behind_every_usual_configuration() {
    let agent = agent(|config| config.set("api.allowed_hosts", json!([Browser::NAME])));
    let browser = browser();
    for forwarding in FORWARDING {
        let nginx = Nginx::start(&location("/", agent.address(), forwarding));
        // Only localhost gets Sec-Fetch-Site over plain HTTP.
        for host in ["localhost", Browser::NAME, "127.0.0.1"] {
            use_agent(&browser, &format!("http://{host}:{}/ui", nginx.port()));
        }
        let nginx = Nginx::start_with_tls(&location("/", agent.address(), forwarding));
        use_agent(&browser, &format!("https://{}:{}/", Browser::NAME, nginx.port()));
    }
}

#[test]
fn people_log_in_to_the_warden_behind_every_usual_configuration() {
    let browser = browser();
    let log_out = || browser.devtools("Network.clearBrowserCookies", &json!({}));
    for forwarding in FORWARDING {
        let folder = folder();
        let warden = Warden::of_fleet(folder.path(), &["home"]);
        for (seq, host) in (1..).zip(["localhost", Browser::NAME]) {
            log_out();
            let nginx = Nginx::start(&location("/", warden.address(), forwarding));
            use_warden(&browser, &format!("http://{host}:{}/", nginx.port()), &warden, seq, "");
        }
        log_out();
        let nginx = Nginx::start_with_tls(&location("/", warden.address(), forwarding));
        use_warden(&browser, &format!("https://{}:{}/", Browser::NAME, nginx.port()), &warden, 3, "");
        let session = cookies(&browser).into_iter().find(|cookie| cookie["name"] == "token");
        let session = session.expect("a session");
        // Known from the origin of the page, where nginx does not say it.
        assert_eq!((&session["secure"], &session["httpOnly"]), (&json!(true), &json!(true)), "{session}");
        browser.reload();
        browser.wait("the dashboard", "document.querySelectorAll('#machines > li').length === 1");
    }
}

#[test]
fn both_programs_are_served_below_a_path_of_one_name() {
    let folder = folder();
    let warden = Warden::below(folder.path(), "/fleet/warden", &["home"]);
    let agent = agent(|config| {
        config.set("api.allowed_hosts", json!([Browser::NAME])).set("api.base_path", "/tools/agent")
    });
    let nginx = Nginx::start(&format!(
        "{} {} location / {{ return 200 'another program'; }}",
        location("/tools/agent", agent.address(), FORWARDING[0]),
        location("/fleet/warden/", warden.address(), FORWARDING[0]),
    ));
    let at = format!("http://{}:{}", Browser::NAME, nginx.port());
    let browser = browser();
    // Without the slash, and without the name of the page.
    use_agent(&browser, &format!("{at}/tools/agent"));
    assert_eq!(browser.url(), format!("{at}/tools/agent/ui"));
    use_warden(&browser, &format!("{at}/fleet/warden/"), &warden, 1, "/fleet/warden");
    let session = cookies(&browser).into_iter().find(|cookie| cookie["name"] == "token").expect("a session");
    assert_eq!(session["path"], "/fleet/warden");
    browser.wait(
        "the map's link",
        "document.querySelector('#csv').href.endsWith('/fleet/warden/fleet/images?format=csv')",
    );
    browser.click("#share");
    browser.click("#logout");
    browser.wait("the form", "document.querySelector('#token')");
    assert_eq!(browser.url(), format!("{at}/fleet/warden/"));
    assert_eq!(cookies(&browser), Vec::<serde_json::Value>::new());
    assert!(
        browser.requests().iter().all(|url| !url.starts_with(&at)
            || url.contains("/tools/agent")
            || url.contains("/fleet/warden")),
        "{:#?}",
        browser.requests()
    );
}

#[test]
fn a_proxy_may_also_remove_the_path() {
    let folder = folder();
    let warden = Warden::of_fleet(folder.path(), &["home"]);
    let agent = agent(|config| config);
    let nginx = Nginx::start(&format!(
        "{} {}",
        location("/agent/", &format!("{}/", agent.address()), FORWARDING[1]),
        location("/warden/", &format!("{}/", warden.address()), FORWARDING[1]),
    ));
    let at = format!("http://localhost:{}", nginx.port());
    let browser = browser();
    use_agent(&browser, &format!("{at}/agent/ui"));
    use_warden(&browser, &format!("{at}/warden/"), &warden, 1, "");
}

/// Serves a page of somebody else, once per connection.
fn foreign_page() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            // A browser also opens connections that it does not use; a page must not wait for those.
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\nConnection: close\r\n\r\nevil",
                );
            });
        }
    });
    port
}

#[test]
fn a_page_on_another_port_or_under_a_rebound_name_can_change_nothing() {
    // `boat.test` is not allowed: to the agent it is any name that somebody has pointed at this machine.
    let agent = agent(|config| config);
    let count = || agent.request("GET", "/audit?limit=500").text().matches("manual_trigger").count();
    let foreign = foreign_page();
    let browser = browser();
    // All requests are refused.
    browser.allow_console_errors(&[""]);
    for forwarding in some_forwarding() {
        let nginx = Nginx::start(&format!(
            "{} location /evil {{ default_type text/html; return 200 'evil'; }}",
            location("/", agent.address(), forwarding)
        ));
        for host in ["localhost", Browser::NAME, "127.0.0.1"] {
            let target = format!("http://{host}:{}/trigger", nginx.port());
            browser.open(&format!("http://{host}:{}/", nginx.port()));
            browser.open(&format!("http://{host}:{foreign}/"));
            for init in [
                "{ method: 'POST', mode: 'no-cors' }",
                "{ method: 'POST', headers: { 'x-evenkeel-page': '1' } }",
                "{ method: 'POST', headers: { 'x-forwarded-port': location.port } }",
            ] {
                browser.run_async(&format!(
                    "fetch('{target}', {init}).then(arguments[0], () => arguments[0]()).catch(() => {{}});"
                ));
            }
            browser.run(&format!(
                "const form = document.createElement('form'); form.method = 'post'; form.action = '{target}';
                 document.body.append(form); form.submit();"
            ));
            browser.wait("the refusal", "document.body.innerText.includes('rejected')");
        }
        // The page under the rebound name itself: same origin to the browser, so that it can send any header.
        browser.open(&format!("http://{}:{}/evil", Browser::NAME, nginx.port()));
        for headers in [
            "{}",
            "{ 'x-evenkeel-page': '1' }",
            "{ 'x-forwarded-host': location.host, 'x-evenkeel-page': '1' }",
        ] {
            let status = browser.run_async(&format!(
                "fetch('/trigger', {{ method: 'POST', headers: {headers} }}).then((r) => arguments[0](r.status));"
            ));
            assert_eq!(status, 403, "{forwarding} {headers}");
        }
    }
    assert_eq!(count(), 0);
}
