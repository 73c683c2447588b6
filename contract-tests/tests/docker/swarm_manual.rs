//! Runs the commands and the configuration of the manual's swarm page exactly as documented.

use contract_tests::{Agent, Config, Image, Swarm, run_agent, wait_for};
use evenkeel_common::wire::Kind;
use serde_json::Value;

/// Registry host in the manual.
const HOST: &str = "registry.example:5000";

/// Returns the code blocks of a language in the section "Quick start".
fn blocks(page: &str, language: &str) -> Vec<String> {
    let part =
        page.split("\n## ").find(|part| part.starts_with("Quick start")).expect("it has a quick start");
    let fenced = part.split("\n```").skip(1).step_by(2);
    let of_language = fenced.filter_map(|block| block.strip_prefix(&format!("{language}\n")));
    of_language.map(str::to_owned).collect()
}

#[test]
fn the_quick_start_brings_an_update_to_a_service() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../dist/docs/swarm.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (commands, configurations) = (blocks(&page, "sh"), blocks(&page, "json"));
    let ([create, use_it], [configuration]) = (commands.as_slice(), configurations.as_slice()) else {
        panic!("a service is created and configured, and then updated: {commands:?} {configurations:?}");
    };
    let swarm = Swarm::start();
    swarm.push(&Image::good("v1"));
    let here = |text: &str| text.replace(HOST, &swarm.registry.host);
    let create = here(create);
    let words: Vec<&str> = create.split_whitespace().collect();
    assert_eq!(words[..3], ["docker", "service", "create"], "{create}");
    // Containers of the private engine have no network.
    swarm.engine().docker(&[&["service", "create", "--detach", "--network", "host"], &words[3..]].concat());
    wait_for("the service to run", || match swarm.running().len() {
        2 => Ok(()),
        other => Err(other.to_string()),
    });

    let mut config: Value = serde_json::from_str(&here(configuration)).unwrap();
    config["services"][0]["health_grace"] = 3.into();
    let agent =
        Agent::start(swarm.folder(), Config::from(config), &[("DOCKER_HOST", &swarm.engine().host())]);
    agent.wait_first_poll();
    let v2 = swarm.push(&Image::good("v2"));
    let file = swarm.folder().join("config.json");
    let mut output = String::new();
    for line in use_it.lines() {
        let words: Vec<&str> = line.split(" #").next().unwrap_or_default().split_whitespace().collect();
        match words.as_slice() {
            ["docker", rest @ ..] => output.push_str(&swarm.engine().docker(rest)),
            ["evenkeel", rest @ ..] => {
                let ended = run_agent(&swarm.engine(), &file, rest);
                assert_eq!(ended.code, Some(0), "{line}: {ended:?}");
                output.push_str(&ended.stdout);
            }
            other => panic!("{other:?} is not a command that this test can run"),
        }
        if words.get(1) == Some(&"trigger") {
            agent.wait_entry(&Kind::UPDATED, 1);
        }
    }
    swarm.assert_runs(&v2, 2);
    for part in ["shop_web.1", "updated", &v2.digest[..19]] {
        assert!(output.contains(part), "{part}: {output}");
    }
}
