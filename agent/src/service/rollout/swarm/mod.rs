//! The rollout to a swarm service: the swarm replaces the tasks, and the agent watches them (DECISIONS 10).

pub mod plan;
pub mod watch;
