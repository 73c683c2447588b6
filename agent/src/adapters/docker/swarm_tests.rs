//! Tests against a mock engine that is a swarm manager.

use serde_json::json;

use super::tests::{answer, engine, server};
use crate::model::swarm::Restarts;
use crate::model::{Reference, SwarmError};
use crate::ports::Swarm as _;

fn says(message: &str) -> String {
    json!({ "message": message }).to_string()
}

/// Returns the error of a service read that gets this response.
async fn service(status: u16, message: &str) -> SwarmError {
    let server = server().await;
    answer(&server, "/services", status, &says(message)).await;
    engine(&server).service("web").await.unwrap_err()
}

#[tokio::test]
async fn a_manager_that_is_not_ready_still_counts_as_in_a_swarm() {
    let starting = "This node is not a swarm manager. Manager is being prepared or has trouble connecting to the cluster.";
    let error = service(503, starting).await;
    assert!(matches!(error, SwarmError::NoLeader(_)), "{error:?}");
    let outside =
        "This node is not a swarm manager. Use \"docker swarm init\" or \"docker swarm join\" to connect.";
    assert_eq!(service(503, outside).await, SwarmError::NotManager("it is in no swarm".into()));
    let late = service(500, "rpc error: code = DeadlineExceeded desc = context deadline exceeded").await;
    // The quorum may be complete, and only this manager cut off.
    assert!(
        matches!(&late, SwarmError::NoLeader(why) if why.contains("this one can't reach it")),
        "{late:?}"
    );
}

#[tokio::test]
async fn a_manager_that_cannot_reach_the_leader_is_not_an_engine_that_is_away() {
    let words = "rpc error: code = Unavailable desc = all SubConns are in TransientFailure";
    let error = service(503, words).await;
    assert!(matches!(&error, SwarmError::NoLeader(text) if text.contains(words)), "{error:?}");
    for why in ["node lost leader status", "node is stopped"] {
        let words = format!("rpc error: code = Unknown desc = raft: failed to process the request: {why}");
        let error = service(500, &words).await;
        assert!(matches!(error, SwarmError::NoLeader(_)) && error.is_transient(), "{error:?}");
    }
    let error = service(503, "no healthy upstream").await;
    assert!(matches!(error, SwarmError::Unavailable(_)), "a proxy in front of it: {error:?}");
}

#[tokio::test]
async fn a_machine_that_has_joined_again_is_neither_down_nor_paused_because_of_its_former_node() {
    let node = |id: &str, host: &str, state: &str| json!({"ID": id, "Description": {"Hostname": host}, "Status": {"State": state}});
    let paused = |mut node: serde_json::Value| {
        node["Spec"] = json!({"Availability": "pause"});
        node
    };
    let nodes = json!([
        paused(node("n6", "gamma", "down")),
        paused(node("n7", "delta", "ready")),
        node("n1", "alpha", "down"),
        node("n2", "alpha", "ready"),
        node("n3", "beta", "disconnected"),
        node("n4", "beta", "down"),
        node("n5", "gamma", "ready"),
    ]);
    let server = server().await;
    answer(&server, "/services", 200, &json!([{"ID": "s1", "Spec": {"Name": "web"}}]).to_string()).await;
    answer(&server, "/tasks", 200, "[]").await;
    answer(&server, "/nodes", 200, &nodes.to_string()).await;
    answer(&server, "/info", 200, "{}").await;
    let seen = engine(&server).service("web").await.unwrap();
    assert_eq!(seen.nodes_down.into_iter().collect::<Vec<_>>(), ["beta"]);
    assert_eq!(seen.nodes_paused.into_iter().collect::<Vec<_>>(), ["delta"]);
}

#[tokio::test]
async fn nodes_that_have_one_host_name_are_told_apart_by_their_ids() {
    let node = |id: &str, availability: &str| {
        let (description, spec) = (json!({"Hostname": "pi"}), json!({"Availability": availability}));
        json!({"ID": id, "Description": description, "Spec": spec, "Status": {"State": "ready"}})
    };
    let task = |id: &str, node: &str, state: &str| json!({"ID": id, "NodeID": node, "DesiredState": "running", "Status": {"State": state}});
    let spec = json!({"Name": "web", "Mode": {"Global": {}}});
    let tasks = json!([task("t1", "n1", "running"), task("t2", "n2", "preparing")]);
    let nodes = json!([node("n1", "active"), node("n2", "pause")]);
    let server = server().await;
    answer(&server, "/services", 200, &json!([{"ID": "s1", "Spec": spec}]).to_string()).await;
    answer(&server, "/tasks", 200, &tasks.to_string()).await;
    answer(&server, "/nodes", 200, &nodes.to_string()).await;
    answer(&server, "/info", 200, "{}").await;
    let seen = engine(&server).service("web").await.unwrap();
    let named: Vec<_> = seen.tasks.iter().map(|task| (&*task.name, &*task.node)).collect();
    assert_eq!(named, [("web.n1", "n1"), ("web.n2", "n2")]);
    assert_eq!((seen.desired(), seen.containers().len()), (2, 2));
    assert_eq!(seen.shortage().as_deref(), Some("1 of 2 tasks run (web.n2 is preparing)"));
    assert_eq!(seen.nodes_paused.into_iter().collect::<Vec<_>>(), ["n2"]);
}

#[tokio::test]
async fn a_restart_policy_that_leaves_ended_tasks_as_they_are_for_a_while_is_recognized() {
    for (policy, expected) in [
        (json!(null), Restarts::All),
        (json!({"Condition": "any"}), Restarts::All),
        (json!({"Condition": "any", "Delay": 59_000_000_000_u64}), Restarts::All),
        (json!({"Condition": "any", "Delay": 60_000_000_000_u64}), Restarts::NotDone),
        (json!({"Delay": 86_400_000_000_000_u64}), Restarts::NotDone),
        (json!({"Condition": "on-failure"}), Restarts::NotDone),
        (json!({"Condition": "none"}), Restarts::Never),
    ] {
        let spec = json!({"Name": "web", "TaskTemplate": {"RestartPolicy": policy}});
        let server = server().await;
        answer(&server, "/services", 200, &json!([{"ID": "s1", "Spec": spec}]).to_string()).await;
        answer(&server, "/tasks", 200, "[]").await;
        answer(&server, "/nodes", 200, "[]").await;
        answer(&server, "/info", 200, "{}").await;
        let seen = engine(&server).service("web").await.unwrap();
        assert_eq!(seen.restarts, expected, "{policy}");
    }
}

#[tokio::test]
async fn an_unusable_swarm_is_reported_with_the_engines_message() {
    for words in [
        "Swarm is encrypted and needs to be unlocked before it can be used. Please use \"docker swarm unlock\" to unlock it.",
        "Swarm certificates have expired. To replace them, leave the swarm and join again.",
    ] {
        let error = service(503, words).await;
        assert!(matches!(error, SwarmError::Unusable(_)) && error.is_transient(), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(words) && !text.contains("unavailable"), "{text}");
    }
}

#[tokio::test]
async fn a_registry_error_is_never_taken_for_the_managers() {
    let image = Reference::parse("localhost:5000/web:1").unwrap();
    let web = super::swarm::service(&json!({}));
    for status in [500, 503, 504] {
        let server = server().await;
        let words = "Get https://localhost:5000/v2/: context deadline exceeded";
        answer(&server, "/distribution/localhost:5000/web:1/json", status, &says(words)).await;
        answer(&server, "/nodes", 200, "[]").await;
        let error = engine(&server).admits(&web, &image).await.unwrap_err();
        let is_told = matches!(&error, SwarmError::Refused(text)
            if text.contains("ask the registry for localhost:5000/web:1") && text.contains(words));
        assert!(is_told, "{status}: {error:?}");
    }
    // The managers' own error takes precedence.
    let server = server().await;
    answer(&server, "/distribution/localhost:5000/web:1/json", 500, &says("no")).await;
    answer(&server, "/nodes", 500, &says("context deadline exceeded")).await;
    let error = engine(&server).admits(&web, &image).await.unwrap_err();
    assert!(matches!(error, SwarmError::NoLeader(_)), "{error:?}");
}
