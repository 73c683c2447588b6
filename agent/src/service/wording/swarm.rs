//! What is said of services of a swarm.

use crate::model::image::Digest;

/// Somebody else has set the service to another image in the middle of a deployment.
pub(in crate::service) fn foreign(service: &str, image: &str) -> String {
    format!(
        "somebody else has set the swarm service {service} to {image}, which is left as it is; nothing is proven or blocked"
    )
}

/// Somebody has asked the swarm for the previous image in the middle of a deployment.
pub(in crate::service) fn manual_rollback(service: &str, image: &str) -> String {
    format!(
        "somebody has rolled the swarm service {service} back to {image} while its update was under way; nothing is blocked"
    )
}

/// Somebody else's update is under way.
pub(in crate::service) fn busy(service: &str) -> String {
    format!("another update of the swarm service {service} is under way; the next check looks again")
}

/// The same for a person who has asked for a redeploy.
pub(in crate::service) fn busy_for_redeploy(service: &str) -> String {
    format!("another update of the swarm service {service} is under way; try again when it has ended")
}

/// It can't be deployed for reasons that are no image's.
pub(in crate::service) fn by_nodes(image: &str, why: &str) -> String {
    format!(
        "{image} could not be run by the nodes of the swarm and was rolled back, but is not blocked: {why}"
    )
}

/// Tasks wait for a node.
pub(in crate::service) fn unplaced(service: &str, why: &str) -> String {
    format!("the update of the swarm service {service} waits: {why}")
}

/// The configured image is not the service's.
pub(in crate::service) fn other_image(service: &str, runs: &[&str], configured: &str) -> String {
    format!("the swarm service {service} runs {}, and not {configured}, which is configured", runs.join(", "))
}

/// The specification names no digest.
pub(in crate::service) fn no_digest(image: &str) -> String {
    format!(
        "the swarm service names no digest of {image}, so it can't be compared; nothing is deployed until the registry \
         has a new digest; a redeploy sets the digest that the registry has now"
    )
}

/// A person has set the service to another image than the one that the registry has.
pub(in crate::service) fn declined(image: &str, digest: &Digest) -> String {
    format!(
        "{image}: somebody has replaced {digest} in the swarm (a rollback, or another image), which is respected until \
         the registry has another digest"
    )
}

/// A service whose tasks are meant to end.
pub(in crate::service) fn job(service: &str) -> String {
    format!("the swarm service {service} is a job, which is never updated: its tasks are meant to end")
}

/// A service without tasks.
pub(in crate::service) fn scaled_to_zero(service: &str) -> String {
    format!(
        "the swarm service {service} is scaled to 0: a new image could not be proven, so it is deployed when the \
         service is scaled up"
    )
}

/// A global service that no node runs.
pub(in crate::service) fn on_no_node(service: &str) -> String {
    format!(
        "no node takes a task of the swarm service {service}: a new image could not be proven, so it is deployed when \
         there is one"
    )
}
