//! Newer tags are written to the env file and deployed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use contract_tests::{Agent, FakeWarden, Image, Kill, Pushed, Shape, World, wait_for};
use evenkeel_common::wire::{Kind, StatusValue};
use serde_json::{Value, json};

/// Content of `.env`, which a manual `docker compose up` reads, too.
const BEFORE: &str = "# the shop\r\nexport WEB_TAG='1.27.0' # ours\r\nSECRET=\"a b\"";

/// A project with the image `web:${WEB_TAG}`, on 1.27.0, and its env file.
struct Shop {
    world: World,
    env_file: PathBuf,
}

impl Shop {
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
        let shop = Self { world, env_file };
        shop.push("1.27.0", &Image::good("v1"));
        shop.world.project.up();
        shop
    }

    fn push(&self, tag: &str, image: &Image) -> Pushed {
        let world = &self.world;
        world.registry.push("web", tag, image, Shape::Docker, &world.project.name)
    }

    fn agent(&self, more: &Value) -> Agent {
        self.agent_with_grace(more, 3)
    }

    /// Starts an agent whose probations take this many seconds.
    fn agent_with_grace(&self, more: &Value, health_grace: u64) -> Agent {
        let mut update = json!({"tags": "~1.27", "tag_variable": "WEB_TAG"});
        for (key, value) in more.as_object().into_iter().flatten() {
            update[key] = value.clone();
        }
        let entry = self.world.entry("web", &["web:1.27.0"]);
        let env_file = self.env_file.to_str().expect("the path is text");
        let entry = entry.set("env_file", env_file).set("update", update);
        self.world.agent_for([entry.set("health_grace", health_grace)])
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
fn the_newest_tag_is_written_deployed_and_used_from_then_on() {
    let shop = Shop::new("tag-newer");
    shop.push("1.27.3", &Image::good("v3"));
    let v4 = shop.push("1.27.4", &Image::good("v4"));
    shop.push("1.28.0", &Image::good("v5"));
    let mut agent = shop.agent(&json!({}));
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v4.digest));
    assert!(entry.message.contains("from tag 1.27.0 to 1.27.4"), "{entry:?}");
    agent.wait_done(1);
    shop.world.assert_runs("web", "v4");
    shop.assert_tag("1.27.4");
    shop.world.assert_tidy();
    wait_for("the record to name the new tag", || match agent.service("web").images {
        Some(images) if images[0].image.ends_with("/web:1.27.4") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // From now on, pushes to the current tag are deployed, not those to the configured one.
    shop.push("1.27.0", &Image::good("v0"));
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    let moved = shop.push("1.27.4", &Image::good("v4b"));
    agent.trigger("web");
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 2).new_digest.as_deref(), Some(&*moved.digest));
    agent.wait_done(2);
    shop.world.assert_runs("web", "v4b");
    shop.assert_tag("1.27.4");
    // The state survives a restart.
    agent.terminate();
    agent.restart();
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.service("web").status, StatusValue::Ok);
}

#[test]
fn old_images_are_removed_with_their_tags_unless_tagged_manually() {
    let shop = Shop::new("tag-cleanup");
    let env_file = shop.env_file.to_str().expect("the path is text");
    let update = json!({"tags": "~1.27", "tag_variable": "WEB_TAG"});
    let entry = shop.world.entry("web", &["web:1.27.0"]).set("env_file", env_file);
    let mut agent = shop.world.agent_for([entry.set("keep_images", 1).set("update", update)]);
    let engine = &shop.world.engine;
    let name = |tag: u32| format!("{}/web:1.27.{tag}", shop.world.host);
    let here = |tag: u32| engine.image_id(&name(tag)).is_some();
    let mut deploy = |n: usize| {
        let pushed = shop.push(&format!("1.27.{n}"), &Image::good(&format!("newer-{n}")));
        // After a restart, the agent reads the list of tags immediately.
        agent.terminate();
        agent.restart();
        assert_eq!(agent.wait_entry(&Kind::UPDATED, n).new_digest.as_deref(), Some(&*pushed.digest));
        wait_for("the deployment to complete", || {
            if agent.service("web").deploying { Err(format!("{:?}", agent.steps())) } else { Ok(()) }
        });
    };
    deploy(1);
    deploy(2);
    let mine = format!("{}/web:mine", shop.world.host);
    engine.docker(&["tag", &name(2), &mine]);
    deploy(3);
    deploy(4);
    wait_for("unused images to be removed", || {
        let left: Vec<u32> = (0..=4).filter(|n| here(*n)).collect();
        // The first image was present before the agent, the second one has a tag of the operator.
        if left == [0, 2, 4] { Ok(()) } else { Err(format!("{left:?}")) }
    });
    assert!(engine.image_id(&mine).is_some());
    shop.world.assert_runs("web", "newer-4");
}

#[test]
fn a_bad_newer_tag_is_rolled_back_with_its_line_and_the_next_one_is_tried() {
    let shop = Shop::new("tag-bad");
    let bad = shop.push("1.27.4", &Image::fails_on_command("v4"));
    let mut agent = shop.agent_with_grace(&json!({}), 15);
    shop.world.project.fail("web", "v4");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*bad.digest));
    agent.wait_done(1);
    shop.world.assert_runs("web", "v1");
    shop.assert_tag("1.27.0");
    assert_eq!(agent.blocked().get("web/web:1.27.0"), Some(&bad.digest));
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    shop.world.assert_runs("web", "v1");
    // A new digest of the current tag is still an update.
    let patched = shop.push("1.27.0", &Image::good("v1b"));
    agent.trigger("web");
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 1).new_digest.as_deref(), Some(&*patched.digest));
    agent.wait_done(2);
    shop.world.assert_runs("web", "v1b");
    assert_eq!(agent.blocked().get("web/web:1.27.0"), Some(&bad.digest));
    // After a restart, the agent reads the list of tags immediately.
    let good = shop.push("1.27.5", &Image::good("v5"));
    agent.terminate();
    agent.restart();
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 2).new_digest.as_deref(), Some(&*good.digest));
    agent.wait_done(1);
    shop.world.assert_runs("web", "v5");
    shop.assert_tag("1.27.5");
    assert_eq!(agent.blocked().len(), 0);
}

#[test]
fn while_the_newest_tag_is_blocked_the_second_newest_is_deployed() {
    let shop = Shop::new("tag-next");
    let next = shop.push("1.27.3", &Image::good("v3"));
    let bad = shop.push("1.27.4", &Image::fails_on_command("v4"));
    let mut agent = shop.agent_with_grace(&json!({}), 15);
    shop.world.project.fail("web", "v4");
    assert_eq!(agent.wait_entry(&Kind::ROLLED_BACK, 1).new_digest.as_deref(), Some(&*bad.digest));
    agent.wait_done(1);
    agent.trigger("web");
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 1).new_digest.as_deref(), Some(&*next.digest));
    agent.wait_done(2);
    shop.world.assert_runs("web", "v3");
    shop.assert_tag("1.27.3");
    assert_eq!(agent.blocked().get("web/web:1.27.0"), Some(&bad.digest));
    // Neither a check nor a restarted agent deploys the bad tag again.
    agent.terminate();
    agent.restart();
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.entries(&Kind::ROLLED_BACK).len(), 1);
    shop.world.assert_runs("web", "v3");
    // A fixed image with the same tag is deployed.
    let mended = shop.push("1.27.4", &Image::good("v4b"));
    agent.trigger("web");
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 2).new_digest.as_deref(), Some(&*mended.digest));
    agent.wait_done(1);
    shop.world.assert_runs("web", "v4b");
    assert_eq!(agent.blocked().len(), 0);
    shop.world.assert_tidy();
}

#[test]
fn a_newer_tag_waits_for_its_gates_and_the_same_content_is_not_an_update() {
    let shop = Shop::new("tag-gate");
    shop.push("1.27.1", &Image::good("v1"));
    let mut agent = shop.agent(&json!({"approve": true}));
    agent.wait_entry(&Kind::UPDATE_AVAILABLE, 1);
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.service("web").waiting, None, "it has the same content");
    shop.assert_tag("1.27.0");

    let v2 = shop.push("1.27.2", &Image::good("v2"));
    agent.terminate();
    agent.restart();
    wait_for("the newer tag to wait", || match agent.service("web").waiting {
        Some(waiting) if waiting.digest == v2.digest => Ok(()),
        other => Err(format!("{other:?}")),
    });
    shop.assert_tag("1.27.0");
    shop.world.assert_runs("web", "v1");
    assert_eq!(agent.request("POST", "/approve/web").status, 200);
    agent.wait_entry(&Kind::UPDATED, 1);
    shop.world.assert_runs("web", "v2");
    shop.assert_tag("1.27.2");
}

/// As in repositories that changed from calendar versions to numbers.
#[test]
fn tags_of_a_scheme_that_was_given_up_and_images_that_are_older_are_told_and_not_deployed() {
    let shop = Shop::new("tag-scheme");
    for tag in ["1.24.0", "1.25.0", "1.25.1", "1.26.0"] {
        shop.push(tag, &Image::good("old"));
    }
    shop.push("2021.12.16", &Image::good("calendar"));
    shop.push("1.28.0", &Image::good("built before").created_at("2020-01-01T00:00:00Z"));
    let mut agent = shop.agent(&json!({ "tags": ">=1.27" }));
    let told = agent.wait_entry(&Kind::UPDATE_AVAILABLE, 1);
    assert!(told.message.contains("not taken for newer"), "{told:#?}");
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    shop.world.assert_runs("web", "v1");
    shop.assert_tag("1.27.0");
    // A newer one of the present scheme is deployed all the same.
    shop.push("1.29.0", &Image::good("v2"));
    // The list is read again at the latest after an hour, and after a restart.
    agent.terminate();
    agent.restart();
    agent.wait_entry(&Kind::UPDATED, 1);
    shop.world.assert_runs("web", "v2");
    shop.assert_tag("1.29.0");
}

#[test]
fn tags_with_four_numbers_and_a_build_suffix_are_compared() {
    let mut world = World::new("tag-four");
    let env_file = world.folder().join(".env");
    fs::write(&env_file, "WEB_TAG=4.0.14.2939-ls287\n").unwrap();
    world.project.service("web", &format!("{}/web:${{WEB_TAG}}", world.host), &[]);
    let push = |tag: &str, version: &str| {
        world.registry.push("web", tag, &Image::good(version), Shape::Docker, &world.project.name)
    };
    push("4.0.14.2939-ls287", "v1");
    world.project.up();
    push("4.0.15.2941-ls289", "v2");
    push("develop-4.0.16.1", "other");
    let update = json!({ "tags": ">=4", "tag_variable": "WEB_TAG" });
    let entry = world.entry("web", &["web:4.0.14.2939-ls287"]).set("update", update);
    let agent = world.agent_for([entry.set("env_file", env_file.to_str().unwrap())]);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    world.assert_runs("web", "v2");
    assert_eq!(fs::read_to_string(&env_file).unwrap(), "WEB_TAG=4.0.15.2941-ls289\n");
}

#[test]
fn a_file_that_does_not_use_the_variable_is_reported_and_nothing_is_written() {
    let shop = Shop::on("tag-unused", "1.27.0");
    shop.push("1.27.4", &Image::good("v4"));
    let agent = shop.agent(&json!({}));
    let entry = agent.wait_entry(&Kind::ERROR, 1);
    assert!(entry.message.contains("do not use WEB_TAG"), "{entry:?}");
    agent.wait_done(1);
    shop.world.assert_runs("web", "v1");
    shop.assert_tag("1.27.0");
}

#[test]
fn a_line_changed_manually_during_the_update_is_never_overwritten() {
    let shop = Shop::new("tag-edit");
    let wanted = shop.push("1.27.2", &Image::good("v2"));
    let bad = shop.push("1.27.4", &Image::fails_on_command("v4"));
    let agent = shop.agent_with_grace(&json!({}), 30);
    agent.wait_step("probation", 1);
    let edited = BEFORE.replace("1.27.0", "1.27.2");
    fs::write(&shop.env_file, &edited).unwrap();
    shop.world.project.fail("web", "v4");
    let entry = agent.wait_entry(&Kind::ROLLED_BACK, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*bad.digest));
    agent.wait_done(1);
    assert_eq!(shop.text(), edited);
    let errors = agent.entries(&Kind::ERROR);
    assert!(errors.iter().any(|entry| entry.message.contains("was not restored to 1.27.0")), "{errors:#?}");
    // The newer tag is blocked, so the manually set one is deployed next, by a poll cycle or by this trigger.
    assert_eq!(agent.request("POST", "/trigger/web").status, 200);
    assert_eq!(agent.wait_entry(&Kind::UPDATED, 1).new_digest.as_deref(), Some(&*wanted.digest));
    agent.wait_done(2);
    shop.world.assert_runs("web", "v2");
    assert_eq!(shop.text(), edited);
}

#[test]
fn a_line_changed_manually_before_it_is_written_cancels_the_update() {
    let shop = Shop::new("tag-taken");
    shop.push("1.27.4", &Image::good("v4"));
    let mut agent = shop.agent(&json!({"approve": true}));
    waits(&agent);
    agent.kill_at(Kill { step: Some("pull".to_owned()), after: Duration::ZERO, compose_too: true });
    assert_eq!(agent.request("POST", "/approve/web").status, 200);
    agent.wait_end();
    let edited = BEFORE.replace("'1.27.0'", "1.27.0");
    fs::write(&shop.env_file, &edited).unwrap();
    agent.restart();
    let entry = agent.wait_entry(&Kind::ERROR, 1);
    assert!(entry.message.contains("was changed after the check"), "{entry:?}");
    assert_eq!(shop.text(), edited);
    shop.world.assert_runs("web", "v1");
}

/// Kills the agent at a step of the deployment of a newer tag, and starts it again.
fn killed(step: &str, after: u64, bad: bool) {
    let shop = Shop::new(&format!("tag-kill-{}", step.replace('_', "-")));
    let image = if bad { Image::exits("v4", 1) } else { Image::good("v4") };
    let v4 = shop.push("1.27.4", &image);
    let mut agent = shop.agent_with_grace(&json!({"approve": true}), if bad { 30 } else { 3 });
    waits(&agent);
    agent.kill_at(Kill {
        step: Some(step.to_owned()),
        after: Duration::from_millis(after),
        compose_too: true,
    });
    assert_eq!(agent.request("POST", "/approve/web").status, 200);
    agent.wait_end();
    agent.restart();
    let entry = agent.wait_entry(if bad { &Kind::ROLLED_BACK } else { &Kind::UPDATED }, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v4.digest));
    wait_for("the deployment to complete", || {
        let steps = agent.steps();
        let over = steps.last().is_none_or(|step| step == "done" || step == "unpin");
        if over && !agent.service("web").deploying { Ok(()) } else { Err(format!("{steps:?}")) }
    });
    shop.world.assert_runs("web", if bad { "v1" } else { "v4" });
    shop.assert_tag(if bad { "1.27.0" } else { "1.27.4" });
    assert_eq!(agent.blocked().len(), usize::from(bad));
    shop.world.assert_tidy();
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    shop.assert_tag(if bad { "1.27.0" } else { "1.27.4" });
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
fn the_inventory_contains_the_current_tag() {
    let shop = Shop::new("tags-fleet");
    shop.push("1.27.1", &Image::good("v2"));
    let warden = FakeWarden::start();
    let update = json!({"tags": "~1.27", "tag_variable": "WEB_TAG", "approve": true});
    let entry = shop.world.entry("web", &["web:1.27.0"]);
    let env_file = shop.env_file.to_str().expect("the path is text");
    let config = shop.world.config([entry.set("env_file", env_file).set("update", update)]);
    let agent = shop.world.agent_with(config.set("push", warden.push()), &[]);
    let reported = |tag: &str, is_behind: bool| {
        wait_for(&format!("the inventory to name {tag}"), || {
            let received = warden.received("POST /inventory");
            let image =
                received.last().map(|received| received.body["images"][0].clone()).unwrap_or_default();
            let is_it = image["image"] == format!("{}/web:{tag}", shop.world.host)
                && image["digest"].is_string()
                && image["available"].is_string() == is_behind;
            if is_it { Ok(()) } else { Err(format!("{received:#?}")) }
        });
    };
    reported("1.27.0", true);
    agent.trigger("web");
    agent.wait_entry(&Kind::UPDATED, 1);
    reported("1.27.1", false);
}
