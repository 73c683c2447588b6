//! Handovers under load, behind the proxies of the manual's samples. `dist/scripts/handover-load.sh` makes their image.

use std::time::{Duration, Instant};

use contract_tests::{Agent, Health, Image, Load, LoadReport, World, wait_for};
use evenkeel_common::wire::Kind;
use serde_json::json;

/// The image with the proxies' programs, from Debian's packages.
const PROXIES: &str = "evenkeel-test/proxies:1";

/// Requests a second.
const RATE: u32 = 200;

/// Lets go of a server at the first health check that fails, and sends nothing to a new one before one has passed. A request
/// is tried once.
const HAPROXY: &str = "\
global\n  maxconn 2000\n\
defaults\n  mode http\n  retries 0\n  timeout connect 2s\n  timeout client 10s\n  timeout server 10s\n\
resolvers docker\n  nameserver dns 127.0.0.11:53\n  timeout resolve 500ms\n  timeout retry 500ms\n  hold valid 500ms\n\
frontend public\n  bind :8000\n  default_backend web\n\
backend web\n  balance roundrobin\n  option httpchk GET /health\n  \
server-template web 4 web:8080 check inter 500ms fall 1 rise 1 resolvers docker init-addr none init-state down\n";

/// Tries the next container if one does not answer: nginx has no health checks of its own.
const NGINX: &str = "\
daemon off;\npid /tmp/nginx.pid;\nerror_log stderr;\nevents { worker_connections 1024; }\n\
http {\n  access_log off;\n  resolver 127.0.0.11 valid=1s;\n  server {\n    listen 8000;\n    location / {\n      \
set $web web:8080;\n      proxy_connect_timeout 2s;\n      proxy_next_upstream error timeout http_502 http_503;\n      \
proxy_pass http://$web;\n    }\n  }\n}\n";

/// The same for Caddy.
const CADDY: &str = "\
{\n  admin off\n  auto_https off\n}\n:8000 {\n  reverse_proxy {\n    dynamic a web 8080 {\n      refresh 1s\n      \
resolvers 127.0.0.11\n    }\n    lb_policy round_robin\n    lb_try_duration 5s\n    lb_try_interval 50ms\n    fail_duration 2s\n  }\n}\n";

struct Proxy {
    name: &'static str,
    config: &'static str,
    command: &'static str,
}

const PROXY_PROGRAMS: [Proxy; 3] = [
    Proxy { name: "haproxy", config: HAPROXY, command: "[/usr/sbin/haproxy, -f, /proxy.conf]" },
    Proxy { name: "nginx", config: NGINX, command: "[/usr/sbin/nginx, -c, /proxy.conf]" },
    Proxy {
        name: "caddy",
        config: CADDY,
        command: "[/usr/bin/caddy, run, --config, /proxy.conf, --adapter, caddyfile]",
    },
];

/// A web server with a health check of its own that a file decides. `then` is what its main process does.
fn web(version: &str, health: bool, then: &str) -> Image {
    let ready = if health { "echo ok > /tmp/www/health;" } else { "" };
    let script = format!(
        "mkdir -p /tmp/www; echo fine > /tmp/www/index.html; {ready} httpd -f -p 8080 -h /tmp/www & server=$!; {then}"
    );
    let check = Health {
        timeout: Duration::from_secs(2),
        ..Health::every_second("wget -q -O /dev/null http://127.0.0.1:8080/health", 2)
    };
    let image = Image::good(version);
    Image { command: ["/bin/sh", "-c", &script].map(str::to_owned).to_vec(), ..image }.with_health(check)
}

/// Takes no more requests once it is told to stop, and ends those that it has: nginx sends some until then.
const SERVE: &str = "trap 'kill $server; sleep 1; exit 0' TERM INT; wait $server";

fn good(version: &str) -> Image {
    web(version, true, SERVE)
}

fn bad(version: &str, nth: usize) -> Image {
    match nth % 3 {
        0 => web(version, false, SERVE),
        1 => Image { command: ["/bin/sh", "-c", "exit 7"].map(str::to_owned).to_vec(), ..good(version) },
        _ => web(version, false, "sleep 5; exit 7"),
    }
}

struct Site {
    world: World,
    agent: Agent,
    proxy: &'static str,
    address: String,
}

/// A project with a web service and a proxy in front of it.
fn site(proxy: &Proxy, order: &str) -> Site {
    let mut world = World::new(&format!("load-{}", proxy.name));
    world.engine.docker(&["image", "inspect", PROXIES]);
    world.push("web", &good("v0"));
    std::fs::write(world.folder().join("proxy.conf"), proxy.config).expect("a file can be written");
    let text = format!(
        "services:\n  web:\n    image: {}\n    labels: {{labels}}\n    deploy: {{ update_config: {{ order: start-first }} }}\n  \
         proxy:\n    image: {PROXIES}\n    labels: {{labels}}\n    command: {}\n    volumes: [ '{}:/proxy.conf:ro' ]\n",
        world.reference("web"),
        proxy.command,
        world.folder().join("proxy.conf").display(),
    );
    world.project.write_text(&text);
    world.project.up();
    let drain = json!({"exec": ["/bin/sh", "-c", "rm -f /tmp/www/health"], "wait": 2});
    let update = json!({"order": order, "drain": drain});
    let update = if order == "stop_first" { json!({ "order": order }) } else { update };
    let agent =
        world.agent_for([world.entry("web", &["web:latest"]).set("health_grace", 3).set("update", update)]);
    let id = world.project.container("proxy").id;
    let network = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
    let address = format!("{}:8000", world.engine.docker(&["inspect", "-f", network, &id]).trim());
    wait_for("the proxy to pass requests", || match Load::start(&address, 5).stop() {
        LoadReport { failed, requests: 1.. } if failed.is_empty() => Ok(()),
        report => Err(format!("{report:?}")),
    });
    Site { world, agent, proxy: proxy.name, address }
}

const GOOD_STEPS: [&str; 7] = ["pull", "spread", "probation", "drain", "retire", "soak", "settle"];
const BAD_STEPS: [&str; 6] = ["pull", "spread", "probation", "diagnose", "rollback", "withdraw"];

impl Site {
    /// The containers of the web service: full ID, start, state.
    fn containers(&self) -> Vec<(String, String, String)> {
        let views = self.world.project.containers().into_iter().filter(|view| view.service == "web");
        views.map(|view| (view.id, view.started_at, view.state)).collect()
    }

    /// Deploys an image under load, with a kill at each of these steps.
    fn deploy(&mut self, image: &Image, kills: &[&str], kind: &Kind, nth: usize) -> LoadReport {
        let load = Load::start(&self.address, RATE);
        let began = Instant::now();
        self.world.push("web", image);
        let hit = if kills.is_empty() {
            self.agent.trigger("web");
            Vec::new()
        } else {
            let after = Duration::from_millis(37 * (nth as u64 % 5));
            self.agent.kill_at_each("web", kills, after)
        };
        // The counters, since so many restarts leave more entries than one request returns.
        wait_for("the deployment to complete", || {
            let service = self.agent.service("web");
            let ended = if *kind == Kind::UPDATED { service.updates_total } else { service.rollbacks_total };
            if ended > nth as u64 && !service.deploying { Ok(()) } else { Err(format!("{service:#?}")) }
        });
        let took = began.elapsed().as_secs_f64();
        let report = load.stop();
        let first = report.failed.first().map(|failed| format!(", first {failed:?}")).unwrap_or_default();
        println!(
            "{}, {}, killed at {hit:?}, {took:.0} s: {} requests, {} failed within {:.1} s{first}",
            self.proxy,
            image.version,
            report.requests,
            report.failed.len(),
            report.failing_for().as_secs_f64(),
        );
        report
    }
}

/// How many good and how many bad images each test deploys.
fn rounds() -> usize {
    std::env::var("EVENKEEL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

fn good_images_lose_nothing(proxy: &Proxy) {
    let mut site = site(proxy, "start_first");
    for nth in 0..rounds() {
        let report = site.deploy(&good(&format!("good-{nth}")), &GOOD_STEPS, &Kind::UPDATED, nth);
        assert!(report.failed.is_empty(), "{:#?}", report.failed);
    }
    site.world.assert_tidy();
}

fn bad_images_lose_nothing(proxy: &Proxy) {
    let mut site = site(proxy, "start_first");
    let before = site.containers();
    for nth in 0..rounds() {
        let report = site.deploy(&bad(&format!("bad-{nth}"), nth), &BAD_STEPS, &Kind::ROLLED_BACK, nth);
        assert!(report.failed.is_empty(), "{:#?}", report.failed);
        assert_eq!(site.containers(), before, "the same container since the same time, and no other");
    }
    site.world.assert_tidy();
}

mod nightly {
    use super::*;

    #[test]
    #[ignore = "the requests need the machine for themselves"]
    fn behind_haproxy_a_good_image_loses_no_request() {
        good_images_lose_nothing(&PROXY_PROGRAMS[0]);
    }

    #[test]
    #[ignore = "the requests need the machine for themselves"]
    fn behind_haproxy_a_bad_image_loses_no_request() {
        bad_images_lose_nothing(&PROXY_PROGRAMS[0]);
    }

    #[test]
    #[ignore = "the requests need the machine for themselves"]
    fn behind_nginx_a_good_image_loses_no_request() {
        good_images_lose_nothing(&PROXY_PROGRAMS[1]);
    }

    #[test]
    #[ignore = "the requests need the machine for themselves"]
    fn behind_nginx_a_bad_image_loses_no_request() {
        bad_images_lose_nothing(&PROXY_PROGRAMS[1]);
    }

    #[test]
    #[ignore = "the requests need the machine for themselves"]
    fn behind_caddy_a_good_image_loses_no_request() {
        good_images_lose_nothing(&PROXY_PROGRAMS[2]);
    }

    #[test]
    #[ignore = "the requests need the machine for themselves"]
    fn behind_caddy_a_bad_image_loses_no_request() {
        bad_images_lose_nothing(&PROXY_PROGRAMS[2]);
    }

    /// The other column of the table: what the same load loses when the old container is stopped first.
    #[test]
    #[ignore = "the requests need the machine for themselves"]
    fn an_update_that_stops_first_loses_requests() {
        let mut site = site(&PROXY_PROGRAMS[0], "stop_first");
        let mut lost = 0;
        for nth in 0..rounds() {
            lost += site.deploy(&good(&format!("good-{nth}")), &[], &Kind::UPDATED, nth).failed.len();
        }
        for nth in 0..rounds() {
            lost += site.deploy(&bad(&format!("bad-{nth}"), nth), &[], &Kind::ROLLED_BACK, nth).failed.len();
        }
        assert!(lost > 0, "the load notices an interruption");
    }
}
