//! Sentences about swarm services.

use crate::model::Need;

/// Someone else has set the service to another image in the middle of a deployment.
pub(in crate::service) fn foreign(service: &str, image: &str) -> String {
    format!("the swarm service {service} was set to {image} by someone else and is left as it is")
}

/// Someone has set the service to another image, or back to the earlier one, before the new image was proven.
pub(in crate::service) fn other_image_set(service: &str, image: &str, is_back: bool) -> String {
    if is_back {
        return format!(
            "the swarm service {service} was rolled back to {image} by someone else during its update; nothing is \
             blocked"
        );
    }
    format!("{}; nothing is proven or blocked", foreign(service, image))
}

/// The swarm has left the image of a rollback for the one that had failed.
pub(in crate::service) fn returned(service: &str, image: &str, message: &str) -> String {
    let why = if message.is_empty() { String::new() } else { format!(" ({message})") };
    format!("the swarm has set its service {service} back to {image} by itself{why}")
}

/// An external update is in progress.
pub(in crate::service) fn busy(service: &str) -> String {
    format!("another update of the swarm service {service} is in progress; the next check tries again")
}

/// The same, in answer to a manual redeploy.
pub(in crate::service) fn busy_for_redeploy(service: &str) -> String {
    format!("another update of the swarm service {service} is in progress; try again when it has finished")
}

/// The image can't be deployed because of the nodes.
pub(in crate::service) fn by_nodes(image: &str, why: &str) -> String {
    format!(
        "{image} could not be run by the nodes of the swarm and was rolled back, but is not blocked: {why}"
    )
}

/// Tasks wait for a node.
pub(in crate::service) fn unplaced(service: &str, why: &str) -> String {
    format!("the update of the swarm service {service} is waiting: {why}")
}

/// The swarm has paused an update or a rollback that nobody watches.
pub(in crate::service) fn paused(service: &str, message: &str, is_rollback: bool) -> String {
    let why = if message.is_empty() { String::new() } else { format!(" ({message})") };
    // After a rollback there is nothing to go back to but the image that it has left.
    let (what, or) = if is_rollback {
        ("a rollback", String::new())
    } else {
        ("an update", format!(", or go back with `docker service rollback {service}`"))
    };
    format!(
        "the swarm has paused {what} of the swarm service {service}{why}: its tasks may run different images; \
         continue with `docker service update --force {service}`{or}"
    )
}

/// The service does not run the configured image.
pub(in crate::service) fn other_image(service: &str, runs: &[&str], configured: &str) -> String {
    format!("the swarm service {service} runs {}, not the configured {configured}", runs.join(", "))
}

/// The specification names no digest.
pub(in crate::service) fn no_digest(image: &str) -> String {
    format!(
        "the swarm service names no digest of {image}, so it can't be compared; nothing is deployed until the registry \
         has a new digest; a redeploy sets the digest that the registry has now"
    )
}

/// The service is a job: its tasks are meant to end.
pub(in crate::service) fn job(service: &str) -> String {
    format!("the swarm service {service} is a job, which is never updated: its tasks are meant to end")
}

/// The service has tasks that end by themselves, without being a job.
pub(in crate::service) fn works_to_its_end(service: &str) -> String {
    format!(
        "the swarm service {service} is not updated as long as no task of it has run for an hour: like those of a job, its \
         tasks end by themselves and are not restarted, or only after a long delay, so a new image could not be proven; set \
         the image with `docker service update`"
    )
}

/// The service has no tasks.
pub(in crate::service) fn scaled_to_zero(service: &str) -> String {
    format!(
        "the swarm service {service} is scaled to 0: a new image could not be proven, so it is deployed when the \
         service is scaled up"
    )
}

/// A global service without a suitable node.
pub(in crate::service) fn on_no_node(service: &str) -> String {
    format!(
        "no node can run the swarm service {service}: a new image could not be proven, so it is deployed when a node \
         is available"
    )
}

/// The swarm would stop a task that the agent needs.
pub(in crate::service) fn needed(service: &str, image: &str, task: &str, need: Need) -> String {
    format!(
        "the swarm would stop {task}, {need}, and nothing could be rolled back if the new image failed, so it is not updated: \
         set \"auto_update\" to false, and update it with `docker service update --image {image} {service}`"
    )
}
