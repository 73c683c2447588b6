//! Newer tags that are written into the env file and deployed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use contract_tests::{Agent, FakeWarden, Image, Kill, Pushed, Shape, World, wait_for};
use evenkeel_common::wire::{Kind, StatusValue};
use serde_json::{Value, json};

/// Compose's own file, too: a person's `docker compose up` reads the same.
const BEFORE: &str = "# the shop\r\nexport WEB_TAG='1.27.0' # ours\r\nSECRET=\"a b\"";

/// `web:${WEB_TAG}` on 1.27.0, with what its configuration needs.
struct Stage {
    world: World,
    env_file: PathBuf,
}

impl Stage {
    fn new(about: &str) -> Self {
        Self::on(about, "${WEB_TAG:?}")
    }

    fn on(about: &str, tag: &str) -> Self {
        let mut world = World::new(about);
        let image = format!("{}/web:{tag}", world.host);
        let env_file = world.folder().join(".env");
        fs::write(&env_file, BEFORE).expect("files of the test can be used");
        fs::set_permissions(&env_file, fs::Permissions::from_mode(0o640))
            .expect("files of the test can be used");
        world.project.service("web", &image, &[]);
        let stage = Self { world, env_file };
        stage.push("1.27.0", &Image::good("v1"));
        stage.world.project.up();
        stage
    }

    fn push(&self, tag: &str, image: &Image) -> Pushed {
        let world = &self.world;
        world.registry.push("web", tag, image, Shape::Docker, &world.project.name)
    }

    fn agent(&self, more: &Value) -> Agent {
        let mut update = json!({"tags": "~1.27", "tag_variable": "WEB_TAG"});
        for (key, value) in more.as_object().into_iter().flatten() {
            update[key] = value.clone();
        }
        let entry = self.world.entry("web", &["web:1.27.0"]);
        let env_file = self.env_file.to_str().expect("the path is text");
        self.world.agent_for([entry.set("env_file", env_file).set("update", update)])
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.env_file).expect("files of the test can be used")
    }

    #[track_caller]
    fn assert_tag(&self, tag: &str) {
        assert_eq!(self.text(), BEFORE.replace("1.27.0", tag));
        assert_eq!(
            fs::metadata(&self.env_file).expect("files of the test can be used").permissions().mode()
                & 0o7777,
            0o640
        );
        let beside: Vec<_> =
            fs::read_dir(self.world.folder()).expect("files of the test can be used").flatten().collect();
        let left = beside
            .iter()
            .map(|entry| entry.file_name().into_string().expect("files of the test can be used"));
        assert_eq!(left.filter(|name| name.ends_with("evenkeel-tmp")).count(), 0);
    }
}

fn waits(agent: &Agent) {
    wait_for("the newer tag to wait", || {
        let service = agent.service("web");
        if service.waiting.is_some() { Ok(()) } else { Err(format!("{service:#?}")) }
    });
}

#[test]
fn the_newest_tag_is_written_deployed_and_followed_from_then_on() {
    let stage = Stage::new("tag-newer");
    stage.push("1.27.3", &Image::good("v3"));
    let v4 = stage.push("1.27.4", &Image::good("v4"));
    stage.push("1.28.0", &Image::good("v5"));
    let mut agent = stage.agent(&json!({}));
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v4.digest));
    assert!(entry.message.contains("from tag 1.27.0 to 1.27.4"), "{entry:?}");
    agent.wait_done(1);
    stage.world.assert_runs("web", "v4");
    stage.assert_tag("1.27.4");
    stage.world.assert_tidy();
    wait_for("the record to name the new tag", || match agent.service("web").images {
        Some(images) if images[0].image.ends_with("/web:1.27.4") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // The tag in force is what moves now, not the one that is configured.
    stage.push("1.27.0", &Image::good("v0"));
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    let moved = stage.push("1.27.4", &Image::good("v4b"));
    agent.trigger("web");
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 2).new_digest.as_deref(), Some(&*moved.digest));
    agent.wait_done(2);
    stage.world.assert_runs("web", "v4b");
    stage.assert_tag("1.27.4");
    // A new start finds it all as it was.
    agent.terminate();
    agent.restart();
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.service("web").status, StatusValue::Ok);
}

#[test]
fn an_old_image_goes_with_its_tag_and_one_that_somebody_else_names_or_uses_stays() {
    let stage = Stage::new("tag-cleanup");
    let env_file = stage.env_file.to_str().expect("the path is text");
    let update = json!({"tags": "~1.27", "tag_variable": "WEB_TAG"});
    let entry = stage.world.entry("web", &["web:1.27.0"]).set("env_file", env_file);
    let mut agent = stage.world.agent_for([entry.set("keep_images", 1).set("update", update)]);
    let engine = &stage.world.engine;
    let name = |tag: u32| format!("{}/web:1.27.{tag}", stage.world.host);
    let here = |tag: u32| engine.image_id(&name(tag)).is_some();
    let mut deploy = |n: usize| {
        let pushed = stage.push(&format!("1.27.{n}"), &Image::good(&format!("newer-{n}")));
        // The list of tags is read again by a new agent at once.
        agent.terminate();
        agent.restart();
        assert_eq!(agent.wait_entry(&Kind::UPDATED, n).new_digest.as_deref(), Some(&*pushed.digest));
        wait_for("the deployment to be over", || {
            if agent.service("web").deploying { Err(format!("{:?}", agent.steps())) } else { Ok(()) }
        });
    };
    deploy(1);
    deploy(2);
    let mine = format!("{}/web:mine", stage.world.host);
    engine.docker(&["tag", &name(2), &mine]);
    deploy(3);
    deploy(4);
    wait_for("what is no longer needed to go", || {
        let left: Vec<u32> = (0..=4).filter(|n| here(*n)).collect();
        // The first one was there before the agent, the second one has a person's name.
        if left == [0, 2, 4] { Ok(()) } else { Err(format!("{left:?}")) }
    });
    assert!(engine.image_id(&mine).is_some());
    stage.world.assert_runs("web", "newer-4");
}

#[test]
fn a_bad_newer_tag_is_rolled_back_with_its_line_and_the_next_one_is_tried() {
    let stage = Stage::new("tag-bad");
    let bad = stage.push("1.27.4", &Image::exits("v4", 1));
    let mut agent = stage.agent(&json!({}));
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*bad.digest));
    agent.wait_done(1);
    stage.world.assert_runs("web", "v1");
    stage.assert_tag("1.27.0");
    assert_eq!(agent.blocked().get("web/web:1.27.0"), Some(&bad.digest));
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    stage.world.assert_runs("web", "v1");
    // Meanwhile another digest under the tag in force is an update.
    let patched = stage.push("1.27.0", &Image::good("v1b"));
    agent.trigger("web");
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 1).new_digest.as_deref(), Some(&*patched.digest));
    agent.wait_done(2);
    stage.world.assert_runs("web", "v1b");
    assert_eq!(agent.blocked().get("web/web:1.27.0"), Some(&bad.digest));
    // The list of tags is read again by a new agent at once.
    let good = stage.push("1.27.5", &Image::good("v5"));
    agent.terminate();
    agent.restart();
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 2).new_digest.as_deref(), Some(&*good.digest));
    agent.wait_done(1);
    stage.world.assert_runs("web", "v5");
    stage.assert_tag("1.27.5");
    assert_eq!(agent.blocked().len(), 0);
}

#[test]
fn while_the_newest_tag_is_blocked_the_next_newest_is_deployed_and_the_block_stays() {
    let stage = Stage::new("tag-next");
    let next = stage.push("1.27.3", &Image::good("v3"));
    let bad = stage.push("1.27.4", &Image::exits("v4", 1));
    let mut agent = stage.agent(&json!({}));
    assert_eq!(agent.wait_entry(&Kind::ROLLED_BACK, 1).new_digest.as_deref(), Some(&*bad.digest));
    agent.wait_done(1);
    agent.trigger("web");
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 1).new_digest.as_deref(), Some(&*next.digest));
    agent.wait_done(2);
    stage.world.assert_runs("web", "v3");
    stage.assert_tag("1.27.3");
    assert_eq!(agent.blocked().get("web/web:1.27.0"), Some(&bad.digest));
    // Neither a check nor a new agent deploys the bad one again.
    agent.terminate();
    agent.restart();
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.entries(&Kind::ROLLED_BACK).len(), 1);
    stage.world.assert_runs("web", "v3");
    // Mended under its own name, it goes live.
    let mended = stage.push("1.27.4", &Image::good("v4b"));
    agent.trigger("web");
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 2).new_digest.as_deref(), Some(&*mended.digest));
    agent.wait_done(1);
    stage.world.assert_runs("web", "v4b");
    assert_eq!(agent.blocked().len(), 0);
    stage.world.assert_tidy();
}

#[test]
fn a_newer_tag_waits_for_its_gates_and_one_with_the_same_content_is_no_update() {
    let stage = Stage::new("tag-gate");
    stage.push("1.27.1", &Image::good("v1"));
    let mut agent = stage.agent(&json!({"approve": true}));
    agent.wait_entry(&Kind::UPDATE_AVAILABLE, 1);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.service("web").waiting, None, "it has the same content");
    stage.assert_tag("1.27.0");

    let v2 = stage.push("1.27.2", &Image::good("v2"));
    agent.terminate();
    agent.restart();
    wait_for("the newer tag to wait", || match agent.service("web").waiting {
        Some(waiting) if waiting.digest == v2.digest => Ok(()),
        other => Err(format!("{other:?}")),
    });
    stage.assert_tag("1.27.0");
    stage.world.assert_runs("web", "v1");
    assert_eq!(agent.ask("POST", "/approve/web").status, 200);
    agent.wait_entry(&Kind::UPDATED, 1);
    stage.world.assert_runs("web", "v2");
    stage.assert_tag("1.27.2");
}

#[test]
fn a_file_that_does_not_use_the_variable_is_told_and_nothing_is_written() {
    let stage = Stage::on("tag-unused", "1.27.0");
    stage.push("1.27.4", &Image::good("v4"));
    let agent = stage.agent(&json!({}));
    let entry = agent.wait_entry(&Kind::ERROR, 1);
    assert!(entry.message.contains("do not use WEB_TAG"), "{entry:?}");
    agent.wait_done(1);
    stage.world.assert_runs("web", "v1");
    stage.assert_tag("1.27.0");
}

#[test]
fn a_line_that_a_person_changes_meanwhile_is_never_overwritten() {
    let stage = Stage::new("tag-edit");
    let wanted = stage.push("1.27.2", &Image::good("v2"));
    let bad = stage.push("1.27.4", &Image::exits("v4", 3));
    let agent = stage.agent(&json!({}));
    agent.wait_step("probation", 1);
    let edited = BEFORE.replace("1.27.0", "1.27.2");
    fs::write(&stage.env_file, &edited).unwrap();
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*bad.digest));
    agent.wait_done(1);
    assert_eq!(stage.text(), edited);
    let told = agent.entries(&Kind::ERROR);
    assert!(told.iter().any(|entry| entry.message.contains("was not put back to 1.27.0")), "{told:#?}");
    // The newer tag is blocked, so the one that the person has set is deployed next, by a cycle or by this request.
    assert_eq!(agent.ask("POST", "/trigger/web").status, 200);
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 1).new_digest.as_deref(), Some(&*wanted.digest));
    agent.wait_done(2);
    stage.world.assert_runs("web", "v2");
    assert_eq!(stage.text(), edited);
}

#[test]
fn a_line_that_a_person_changed_before_it_was_written_ends_the_update() {
    let stage = Stage::new("tag-taken");
    stage.push("1.27.4", &Image::good("v4"));
    let mut agent = stage.agent(&json!({"approve": true}));
    waits(&agent);
    agent.kill_at(Kill { step: Some("pull".to_owned()), after: Duration::ZERO, compose_too: true });
    assert_eq!(agent.ask("POST", "/approve/web").status, 200);
    agent.wait_end();
    let edited = BEFORE.replace("'1.27.0'", "1.27.0");
    fs::write(&stage.env_file, &edited).unwrap();
    agent.restart();
    let entry = agent.wait_entry(&Kind::ERROR, 1);
    assert!(entry.message.contains("was changed after the check"), "{entry:?}");
    assert_eq!(stage.text(), edited);
    stage.world.assert_runs("web", "v1");
}

/// Kills the agent at a step of the deployment of a newer tag, and starts it again.
fn killed(step: &str, after: u64, bad: bool) {
    let stage = Stage::new(&format!("tag-kill-{}", step.replace('_', "-")));
    let image = if bad { Image::exits("v4", 1) } else { Image::good("v4") };
    let v4 = stage.push("1.27.4", &image);
    let mut agent = stage.agent(&json!({"approve": true}));
    waits(&agent);
    agent.kill_at(Kill {
        step: Some(step.to_owned()),
        after: Duration::from_millis(after),
        compose_too: true,
    });
    assert_eq!(agent.ask("POST", "/approve/web").status, 200);
    agent.wait_end();
    agent.restart();
    let entry = agent.wait_entry(if bad { &Kind::ROLLED_BACK } else { &Kind::UPDATED }, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v4.digest));
    wait_for("the deployment to be over", || {
        let steps = agent.steps();
        let over = steps.last().is_none_or(|step| step == "done" || step == "unpin");
        if over && !agent.service("web").deploying { Ok(()) } else { Err(format!("{steps:?}")) }
    });
    stage.world.assert_runs("web", if bad { "v1" } else { "v4" });
    stage.assert_tag(if bad { "1.27.0" } else { "1.27.4" });
    assert_eq!(agent.blocked().len(), usize::from(bad));
    stage.world.assert_tidy();
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    stage.assert_tag(if bad { "1.27.0" } else { "1.27.4" });
}

macro_rules! killed_at {
    ($bad:literal: $($step:ident)*) => {$(
        mod $step {
            #[test]
            fn at_once() {
                super::super::killed(stringify!($step), 0, $bad);
            }

            #[test]
            fn a_moment_later() {
                super::super::killed(stringify!($step), 100, $bad);
            }
        }
    )*};
}

mod a_newer_tag_ends_proven_when_killed_at {
    killed_at! { false: pin_images pull write_tag start probation unpin }
}

mod a_bad_newer_tag_ends_undone_when_killed_at {
    killed_at! { true: write_tag start probation diagnose rollback verify_rollback unpin }
}

#[test]
fn the_inventory_names_the_tag_in_force() {
    let stage = Stage::new("tags-fleet");
    stage.push("1.27.1", &Image::good("v2"));
    let warden = FakeWarden::start();
    let update = json!({"tags": "~1.27", "tag_variable": "WEB_TAG", "approve": true});
    let entry = stage.world.entry("web", &["web:1.27.0"]);
    let env_file = stage.env_file.to_str().expect("the path is text");
    let config = stage.world.config([entry.set("env_file", env_file).set("update", update)]);
    let agent = stage.world.agent_with(config.set("push", warden.push()), &[]);
    let reported = |tag: &str, is_behind: bool| {
        wait_for(&format!("the inventory to name {tag}"), || {
            let heard = warden.heard("POST /inventory");
            let image = heard.last().map(|heard| heard.body["images"][0].clone()).unwrap_or_default();
            let is_it = image["image"] == format!("{}/web:{tag}", stage.world.host)
                && image["digest"].is_string()
                && image["available"].is_string() == is_behind;
            if is_it { Ok(()) } else { Err(format!("{heard:#?}")) }
        });
    };
    reported("1.27.0", true);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    reported("1.27.1", false);
}
