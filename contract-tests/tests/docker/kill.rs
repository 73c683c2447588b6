//! An agent that is killed at any point of a deployment and restarted ends in the proven new state or exactly in the old
//! one.

use std::time::Duration;

use contract_tests::{Agent, Image, Kill, World, wait_for};
use evenkeel_common::wire::{Kind, StatusValue};

/// Deploys a good or bad `v2`, kills the agent at a journal step, and starts it again.
fn killed(step: &str, after: u64, compose_too: bool, bad: bool) {
    let about = format!("kill-{}", step.replace('_', "-"));
    let (world, _) = World::with_web_of(&about, &Image::good("v1"), &[]);
    let old = world.project.container("web");
    // A bad image must fail within the probation on a busy machine, too.
    let grace = if bad { 15 } else { 3 };
    let mut agent = world.agent_for([world.entry("web", &["web:latest"]).set("health_grace", grace)]);
    let image = if bad { Image::exits("v2", 1) } else { Image::good("v2") };
    let v2 = world.push("web", &image);
    agent.kill_at(Kill { step: Some(step.to_owned()), after: Duration::from_millis(after), compose_too });
    agent.trigger("web");
    agent.wait_end();
    let last = agent.steps().pop().unwrap_or_default();
    agent.restart();

    let kind = if bad { Kind::ROLLED_BACK } else { Kind::UPDATED };
    let entry = agent.wait_entry(&kind, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    settle(&agent, &last);
    if bad {
        assert_eq!(world.assert_runs("web", "v1").image, old.image);
        assert_eq!(world.engine.image_id(&world.reference("web")), Some(old.image));
        assert_eq!(agent.blocked().get("web/web:latest"), Some(&v2.digest));
    } else {
        let new = world.assert_runs("web", "v2");
        assert_eq!(world.engine.image_id(&world.reference("web")), Some(new.image));
        assert_eq!(agent.blocked().len(), 0);
    }
    world.assert_tidy();

    // There are no duplicate entries, and the next check finds nothing to do.
    assert_eq!(agent.check("web").event, Kind::CHECKED);
    assert_eq!(agent.entries(&Kind::UPDATED).len(), usize::from(!bad));
    assert_eq!(agent.entries(&Kind::ROLLED_BACK).len(), usize::from(bad));
    assert_eq!(agent.entries(&Kind::ROLLBACK_FAILED), []);
    let resumed = agent.entries(&Kind::RESUMED).len();
    match last.as_str() {
        "done" => assert_eq!(resumed, 0, "there was nothing to resume"),
        // The deployment may have completed just before the kill, without its log line.
        "unpin" => assert!(resumed <= 1, "{resumed}"),
        _ => assert_eq!(resumed, 1, "killed after {last}"),
    }
    let service = agent.service("web");
    assert_eq!(service.status, if bad { StatusValue::Blocked } else { StatusValue::Ok });
    assert_eq!((service.updates_total, service.rollbacks_total), (u64::from(!bad), u64::from(bad)));
}

/// Waits until the deployment is complete.
fn settle(agent: &Agent, last: &str) {
    if last != "done" {
        wait_for("the deployment to complete", || {
            let deploying = agent.service("web").deploying;
            let steps = agent.steps();
            // If the deployment completed before the kill, but without its log line, the restart logs no further step.
            let over = steps.last().is_some_and(|step| step == "done" || step == "unpin");
            if over && !deploying { Ok(()) } else { Err(format!("{steps:?}")) }
        });
    }
}

macro_rules! killed_at {
    ($bad:literal: $($step:ident)*) => {$(
        mod $step {
            #[test]
            fn at_once() {
                super::super::killed(stringify!($step), 0, true, $bad);
            }

            #[test]
            fn a_moment_later_while_compose_keeps_running() {
                super::super::killed(stringify!($step), 100, false, $bad);
            }

            #[test]
            fn half_a_second_later() {
                super::super::killed(stringify!($step), 500, true, $bad);
            }
        }
    )*};
}

mod a_good_deploy_ends_proven_when_killed_at {
    killed_at! { false: pin_images pull start probation unpin done }
}

mod a_bad_deploy_ends_undone_when_killed_at {
    killed_at! { true: pin_images pull start probation diagnose rollback verify_rollback unpin done }
}

#[test]
fn an_agent_that_is_killed_repeatedly_still_completes_the_update() {
    let (world, _) = World::with_web_of("kill-often", &Image::good("v1"), &[]);
    let mut agent = world.agent();
    world.push("web", &Image::good("v2"));
    for after in [0, 20, 40, 60, 80, 100] {
        agent.kill_at(Kill { step: None, after: Duration::from_millis(after), compose_too: true });
        // After the first kill, the agent resumes the deployment by itself.
        if after == 0 {
            agent.trigger("web");
        }
        if !agent.wait_killed_or_done(0) {
            break;
        }
        agent.restart();
    }
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(1);
    world.assert_runs("web", "v2");
    world.assert_tidy();
    assert_eq!(agent.entries(&Kind::UPDATED).len(), 1);
}

#[test]
fn a_compose_process_killed_while_recreating_does_not_prevent_the_update() {
    // The old container takes six seconds to stop. During that time the new one has a temporary name of compose.
    let stubborn = ["stop_grace_period: 6s"];
    let (world, _) = World::with_web_of("conflict", &Image::ignores_term("v1"), &stubborn);
    let mut agent = world.agent();
    world.push("web", &Image::good("v2"));
    agent.trigger("web");
    wait_for("compose to have created the new container", || {
        let names: Vec<String> = world.project.containers().into_iter().map(|view| view.name).collect();
        if names.len() == 2 { Ok(()) } else { Err(format!("{names:?}")) }
    });
    agent.kill9(true);
    agent.restart();
    agent.wait_entry(&Kind::UPDATED, 1);
    agent.wait_done(1);
    let view = world.assert_runs("web", "v2");
    assert_eq!(view.name, format!("{}-web-1", world.project.name));
    assert_eq!(agent.entries(&Kind::RESUMED).len(), 1);
    world.assert_tidy();
}
