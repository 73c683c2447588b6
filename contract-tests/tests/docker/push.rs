//! A registry notifies the agent of a push, and the new image runs long before the next poll.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Instant;

use contract_tests::{Engine, Image, Registry, Shape, World, wait_for};
use evenkeel_common::wire::Kind;

/// Starts a relay to the agent, so that the registry can be configured before the agent's address is known.
fn relay() -> (String, mpsc::Sender<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let (sender, target) = mpsc::channel::<String>();
    std::thread::spawn(move || {
        let Ok(target) = target.recv() else { return };
        for client in listener.incoming() {
            let (Ok(mut from), Ok(mut to)) = (client, TcpStream::connect(&target)) else { return };
            let (Ok(mut back_from), Ok(mut back_to)) = (to.try_clone(), from.try_clone()) else { return };
            std::thread::spawn(move || io::copy(&mut from, &mut to));
            std::thread::spawn(move || io::copy(&mut back_from, &mut back_to));
        }
    });
    (address, sender)
}

fn push_goes_live(about: &str, shape: Shape) {
    let (address, agents) = relay();
    let registry = Registry::start_with_notifications(&format!("http://{address}/registry/events"));
    let mut world = World::with(about, &Engine::under_test(), registry);
    world.push("web", &Image::good("v1"));
    world.service("web", "web", &[]);
    world.project.up();
    let agent = world.agent();
    agents.send(agent.address().to_owned()).expect("the relay waits for it");
    // The registry may still send notifications from before the agent's start.
    wait_for("the service to be idle", || {
        let service = agent.service("web");
        if service.deploying { Err(format!("{service:#?}")) } else { Ok(()) }
    });

    let began = Instant::now();
    let v2 = world.push_as("web", &Image::good("v2"), shape);
    let running = wait_for("the new image to run", || {
        let views = world.project.containers();
        let runs = views.iter().any(|view| view.version == "v2" && view.state == "running");
        if runs { Ok(began.elapsed()) } else { Err(format!("{views:#?}")) }
    });
    println!("{about}: from the push to the new container running: {running:?}");
    // The next poll is an hour away, longer than the time limit of the wait.
    let entry = agent.wait_entry(&Kind::UPDATED, 1);
    assert_eq!(entry.new_digest.as_deref(), Some(&*v2.digest));
    assert_eq!(agent.entries(&Kind::MANUAL_TRIGGER), [], "there was no manual trigger");
    agent.wait_done(1);
    world.assert_tidy();
}

#[test]
fn a_push_goes_live_without_waiting_for_the_next_poll() {
    push_goes_live("push", Shape::Docker);
}

#[test]
fn a_push_of_several_platforms_goes_live_without_waiting_for_the_next_poll() {
    push_goes_live("pushindex", Shape::OciIndex);
}
