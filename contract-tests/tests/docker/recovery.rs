//! The manual's backup and recovery of a machine, as it is printed, on a real engine.

use std::process::Command;

use contract_tests::{Image, World, wait_for};
use evenkeel_common::wire::Kind;

const MANUAL: &str = include_str!("../../../dist/docs/operations.md");

/// Returns the commands of the first block after this heading.
fn recipe(heading: &str) -> Vec<&'static str> {
    let (_, text) = MANUAL.split_once(heading).expect("the manual has this section");
    let (_, text) = text.split_once("```sh\n").expect("the section has a recipe");
    let (text, _) = text.split_once("```").expect("the recipe has an end");
    text.lines().collect()
}

/// Runs commands of the manual for this world's project. The service manager's and the login are left to the test.
fn run(world: &World, commands: &[&str]) {
    let folder = world.folder().display().to_string();
    let relative = folder.trim_start_matches('/');
    for command in commands {
        if command.contains("systemctl") || command.contains("docker login") {
            continue;
        }
        let command = command
            .replace("sudo ", "")
            .replace("etc/evenkeel var/lib/evenkeel var/log/evenkeel ", "")
            .replace(" srv/shop", &format!(" {relative}"))
            .replace("/srv/shop", &folder)
            .replace("/root/", "")
            .replace("evenkeel-backup.tar.gz", &format!("/tmp/{}.tar.gz", world.project.name))
            .replace("=shop ", &format!("={} ", world.project.name))
            .replace("shop_data:", &format!("{}_data:", world.project.name))
            .replace(" shop_data", &format!(" {}_data", world.project.name))
            .replace("-p shop", &format!("-p {}", world.project.name))
            // The images of these tests have few programs.
            .replace("alpine tar", &format!("{} /bin/busybox tar", world.reference("web")));
        let output = Command::new("sh")
            .args(["-ec", &command])
            .env("DOCKER_HOST", world.engine.host())
            .output()
            .expect("a shell can be run");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_machine_is_recovered_as_the_manual_says() {
    let mut world = World::new("recover");
    world.push("web", &Image::good("v1"));
    let image = world.reference("web");
    world.project.write_text(&format!(
        "services:
  web:
    image: '{image}'
    labels: {{labels}}
    stop_grace_period: 1s
    environment: {{ GREETING: '${{GREETING}}' }}
    volumes: ['data:/data']
volumes:
  data: {{ labels: {{labels}} }}
"
    ));
    let env_file = world.folder().join(".env");
    std::fs::write(&env_file, "GREETING=from the env file\n").unwrap();
    world.project.up();
    let web = world.project.container("web").id;
    world.engine.docker(&["exec", &web, "sh", "-c", "echo precious >/data/ledger"]);
    let entry = || world.entry("web", &["web:latest"]).set("auto_start", true);
    let mut agent = world.agent_for([entry()]);

    agent.terminate();
    run(&world, &recipe("## Backup"));
    // The machine is lost: containers, volumes, images and files.
    assert!(world.project.compose(&["down", "-v"]).status.success());
    world.engine.docker(&["pull", "-q", &image]);
    std::fs::remove_file(&env_file).unwrap();
    std::fs::remove_file(&world.project.file).unwrap();
    std::fs::remove_dir_all(world.folder().join("state")).unwrap();
    run(&world, &recipe("## Recovery"));
    world.engine.docker(&["rmi", &image]);

    drop(agent);
    let agent = world.agent_for([entry()]);
    wait_for("the project to be started", || {
        let started = agent.entries(&Kind::STARTED).into_iter().any(|entry| entry.service == "web");
        if started { Ok(()) } else { Err(format!("{:#?}", agent.audit())) }
    });
    world.assert_runs("web", "v1");
    let web = world.project.container("web").id;
    let greeting = world.engine.docker(&["exec", &web, "sh", "-c", "echo $GREETING; cat /data/ledger"]);
    assert_eq!(greeting, "from the env file\nprecious");
    assert_eq!(agent.entries(&Kind::NOT_FOUND), []);
    assert!(world.project.compose(&["down", "-v"]).status.success());
    let _ = std::fs::remove_file(format!("/tmp/{}.tar.gz", world.project.name));
}
