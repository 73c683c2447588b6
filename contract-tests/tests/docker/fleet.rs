//! A fleet on a real engine: an image that fails on one machine is not deployed on the others.

use contract_tests::{
    Agent, Config, DiskFullEngine, Image, PREFIX, Project, Service, Warden, World, wait_for,
};
use evenkeel_common::wire::{DeployPhase, Kind, ServiceStatus, Waiting};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Three machines with one project each, a registry and a warden. All projects run version 1.
struct Fleet {
    agents: Vec<Agent>,
    warden: Warden,
    projects: Vec<Project>,
    world: World,
    folders: Vec<TempDir>,
}

impl Fleet {
    fn new(about: &str) -> Self {
        Self::with_rings(about, [0; 3], &Value::Null)
    }

    /// Creates a fleet whose probations are long enough for a bad image to fail within them on a busy machine.
    fn for_bad_images(about: &str) -> Self {
        Self::probing_for(about, [0; 3], &Value::Null, 15)
    }

    /// Creates a fleet with these rings of its machines.
    fn with_rings(about: &str, rings: [u8; 3], rules: &Value) -> Self {
        Self::probing_for(about, rings, rules, 3)
    }

    fn probing_for(about: &str, rings: [u8; 3], rules: &Value, health_grace: u64) -> Self {
        let world = World::new(about);
        world.push("web", &Image::good("v1"));
        let ids = ["one", "two", "three"];
        let warden = Warden::with_rings(world.folder(), &ids, rules);
        let mut fleet = Self { agents: Vec::new(), warden, projects: Vec::new(), world, folders: Vec::new() };
        for (id, ring) in ids.into_iter().zip(rings) {
            let folder = tempfile::Builder::new().prefix(&format!("{PREFIX}{about}-{id}-")).tempdir();
            let folder = folder.expect("a temporary folder can be created");
            let mut project = Project::new(&format!("{about}-{id}"), folder.path(), &fleet.world.engine);
            project.service("web", &fleet.world.reference("web"), &[]);
            project.up();
            let service =
                Service::of_project("web", &project, &["web:latest"]).set("health_grace", health_grace);
            fleet.projects.push(project);
            let push = fleet.warden.push(id);
            let config: Config = fleet.world.config([service]).set("push", push).set("push.ring", ring);
            let host = fleet.world.engine.host();
            let agent = Agent::start(folder.path(), config, &[("DOCKER_HOST", &host)]);
            agent.wait_first_poll();
            fleet.agents.push(agent);
            fleet.folders.push(folder);
        }
        fleet
    }

    fn trigger_all(&self) {
        std::thread::scope(|scope| {
            for agent in &self.agents {
                scope.spawn(|| assert_eq!(agent.request("POST", "/trigger").status, 200));
            }
        });
    }

    /// Returns the number of agents with an entry of this kind.
    fn with(&self, kind: &Kind) -> usize {
        self.agents.iter().filter(|agent| !agent.entries(kind).is_empty()).count()
    }

    /// Waits until `count` agents wait for `gate`, and returns what all agents wait for.
    fn waiting(&self, gate: &str, count: usize) -> Vec<Waiting> {
        wait_for(&format!("{count} agents to wait for {gate}"), || {
            let services = self.records();
            let held: Vec<Waiting> = services.iter().filter_map(|service| service.waiting.clone()).collect();
            if held.iter().filter(|waiting| waiting.gate == gate).count() == count {
                Ok(held)
            } else {
                Err(format!("{services:#?}"))
            }
        })
    }

    /// Returns how many agents have brought up a new image.
    fn begun(&self) -> usize {
        self.agents.iter().filter(|agent| agent.steps().iter().any(|step| step == "start")).count()
    }

    /// Returns when the container of each project was created, in nanoseconds. All must run this version.
    /// Events would tell, too, but the engine does not keep them for long.
    fn made_now(&self, version: &str) -> Vec<i128> {
        let made = |project: &Project| {
            let view = project.container("web");
            assert_eq!(view.version, version, "{view:#?}");
            let output = self.world.engine.docker(&["inspect", "-f", "{{.Created}}", &view.id]);
            let time: jiff::Timestamp = output.trim().parse().expect("the engine reports a time");
            time.as_nanosecond()
        };
        self.projects.iter().map(made).collect()
    }

    fn wait_all_updated(&self) {
        wait_for("all agents to be updated", || match self.with(&Kind::UPDATED) {
            3 => Ok(()),
            count => Err(format!("{count} are: {:#?}", self.records())),
        });
    }

    fn records(&self) -> Vec<ServiceStatus> {
        self.agents.iter().map(|agent| agent.service("web")).collect()
    }
}

#[test]
fn a_bad_image_found_by_all_machines_at_once_affects_one() {
    let mut fleet = Fleet::for_bad_images("fleet-bad");
    fleet.world.push("web", &Image::exits("fleet-bad-v2", 1));
    fleet.trigger_all();
    wait_for("one agent to roll back", || match fleet.with(&Kind::ROLLED_BACK) {
        0 => Err("none has".to_owned()),
        _ => Ok(()),
    });
    let held = fleet.waiting("immunity", 2);
    assert!(held.iter().all(|waiting| waiting.why.contains("failed")), "{held:#?}");
    // A manual trigger does not override it.
    fleet.trigger_all();
    fleet.waiting("immunity", 2);
    assert_eq!((fleet.with(&Kind::ROLLED_BACK), fleet.with(&Kind::UPDATED)), (1, 0));
    assert_eq!(fleet.begun(), 1);

    // The known failure still holds updates while the warden is down, even after a restart of the agents.
    fleet.warden.kill9();
    for agent in &mut fleet.agents {
        agent.kill9(false);
        agent.restart();
        agent.wait_first_poll();
    }
    fleet.trigger_all();
    fleet.waiting("immunity", 2);
    assert_eq!(fleet.begun(), 1);

    // A new digest is tried.
    fleet.warden.restart();
    fleet.world.push("web", &Image::good("fleet-good-v3"));
    fleet.trigger_all();
    fleet.wait_all_updated();
}

#[test]
fn a_good_image_is_proven_on_one_machine_before_the_others() {
    let fleet = Fleet::new("fleet-good");
    fleet.world.push("web", &Image::good("fleet-good-v2"));
    fleet.trigger_all();
    fleet.wait_all_updated();
    let proven =
        fleet.agents.iter().map(|agent| agent.wait_entry(&Kind::UPDATED, 1).timestamp.as_nanosecond());
    let first_proven = proven.min().expect("there are agents");
    let mut made = fleet.made_now("fleet-good-v2");
    made.sort_unstable();
    assert!(made[0] < first_proven && first_proven < made[1], "{made:?}, proven at {first_proven}");
    for project in &fleet.projects {
        assert_eq!(project.container("web").version, "fleet-good-v2");
    }
}

#[test]
fn a_freeze_holds_updates_everywhere_until_it_is_lifted() {
    let fleet = Fleet::new("fleet-freeze");
    let until = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let body = json!({ "reason": "migration", "until": until });
    let reply = fleet.warden.as_operator("POST", "/freeze", &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let id = reply.json()["id"].as_str().map(str::to_owned);
    fleet.world.push("web", &Image::good("v2"));
    // The decision reaches each agent within a second. A trigger before that would start the update.
    wait_for("the freeze to reach all agents", || {
        fleet.trigger_all();
        let held = fleet.agents.iter().filter_map(|agent| agent.service("web").waiting);
        match held.filter(|waiting| waiting.gate == "freeze").count() {
            3 => Ok(()),
            count => Err(format!("{count} are frozen")),
        }
    });
    assert_eq!(fleet.with(&Kind::UPDATED), 0);
    let held = fleet.waiting("freeze", 3);
    assert!(held.iter().all(|waiting| waiting.why.contains("migration")), "{held:#?}");
    assert_eq!(fleet.warden.as_operator("POST", "/thaw", &json!({ "id": id })).status, 200);
    fleet.wait_all_updated();
}

#[test]
fn three_rings_are_updated_one_after_the_other() {
    let soak = 4;
    // The last machine is in ring 0. Ring 2 needs two machines in lower rings, of which ring 1 is one; ring 1 needs all there
    // are.
    let rings = [2, 1, 0];
    let fleet = Fleet::with_rings("fleet-rings", rings, &json!({ "soak": soak, "need": 2 }));
    wait_for("the warden to receive all inventories", || {
        let images = fleet.warden.as_operator("GET", "/fleet/images", &Value::Null).json();
        match images["images"][0]["cells"].as_array().map_or(0, Vec::len) {
            3 => Ok(()),
            _ => Err(images.to_string()),
        }
    });
    fleet.world.push("web", &Image::good("fleet-rings-v2"));
    fleet.trigger_all();
    let held = fleet.waiting("ring", 2);
    assert!(held.iter().all(|waiting| waiting.why.contains("machines in lower rings")), "{held:#?}");
    let proven = |at: usize| fleet.agents[at].wait_entry(&Kind::UPDATED, 1).timestamp.as_nanosecond();
    // Wait one after the other, so that each wait has the full time limit.
    let (first, second, third) = (proven(2), proven(1), proven(0));
    let made = fleet.made_now("fleet-rings-v2");
    let soak = i128::from(soak) * 1_000_000_000;
    assert!(made[2] < first && first + soak <= made[1], "{made:?}, ring 0 proven at {first}");
    assert!(
        made[1] < second && second + soak <= made[0] && made[0] < third,
        "{made:?}, ring 1 proven at {second}"
    );
}

#[test]
fn a_machine_whose_disk_is_full_does_not_spread_its_failure() {
    let mut fleet = Fleet::new("fleet-full");
    // Restart the first agent with an engine whose disk is full.
    let socket = fleet.folders[0].path().join("full.sock");
    let engine = DiskFullEngine::start(&socket, &fleet.world.engine);
    fleet.agents[0].terminate();
    let service = Service::of_project("web", &fleet.projects[0], &["web:latest"]);
    let config = fleet.world.config([service]).set("push", fleet.warden.push("one"));
    let host = format!("unix://{}", socket.display());
    fleet.agents[0] = Agent::start(fleet.folders[0].path(), config, &[("DOCKER_HOST", &host)]);
    fleet.agents[0].wait_first_poll();

    fleet.world.push("web", &Image::good("fleet-full-v2"));
    // It is the first to request a lease. It releases the lease, and its failure does not affect the others.
    fleet.agents[0].trigger("web");
    let fault = wait_for("the first agent to fail", || {
        let service = fleet.agents[0].service("web");
        service.errored.clone().ok_or_else(|| format!("{service:#?}"))
    });
    assert!(fault.contains("no space left on device"), "{fault}");
    for agent in &fleet.agents[1..] {
        assert_eq!(agent.request("POST", "/trigger").status, 200);
    }
    wait_for("the others to be updated", || match fleet.with(&Kind::UPDATED) {
        2 => Ok(()),
        count => Err(format!("{count} are: {:#?}", fleet.records())),
    });
    assert!(engine.failed() > 0);
    assert_eq!(fleet.with(&Kind::ROLLED_BACK), 0);
    let images = fleet.warden.as_operator("GET", "/fleet/images", &Value::Null).json();
    assert_eq!(images["failed"], json!([]), "a failed pull is not reported as a failed image");
}

#[test]
fn another_machine_continues_once_the_lease_of_a_lost_one_has_expired() {
    let mut fleet = Fleet::new("fleet-lost");
    fleet.world.push("web", &Image::good("fleet-lost-v2"));
    fleet.trigger_all();
    let trying = wait_for("one agent to try it", || {
        let at = fleet.agents.iter().position(|agent| {
            let deploy = agent.service("web").deploy;
            deploy.is_some_and(|deploy| deploy.phase == DeployPhase::Probation)
        });
        at.ok_or_else(|| format!("{:#?}", fleet.records()))
    });
    fleet.agents[trying].kill9(true);
    let others: Vec<usize> = (0..3).filter(|at| *at != trying).collect();
    let held = fleet.agents[others[0]].service("web").waiting.expect("the others wait");
    assert!(held.why.contains("has been trying it first since"), "{}", held.why);
    for at in &others {
        fleet.agents[*at].wait_entry(&Kind::UPDATED, 1);
    }
    let made = fleet.made_now("fleet-lost-v2");
    // Its lease was acquired before its container was created, and is valid for 90 s.
    let next = others.iter().map(|at| made[*at]).min().expect("there are two");
    let between = (next - made[trying]) / 1_000_000_000;
    assert!(between > 60, "the next one started after {between} s");
}
