//! Every decision: the only files with methods of [`Service`](crate::service::Service) beside its definition and its views.
//! Each applies one kind of input to the values that the other rooms define, or chooses the next action from them.

mod alert;
mod assess;
mod boot;
mod candidates;
mod check;
pub mod clock_shift;
mod compose_run;
mod declined;
pub mod draft;
mod events;
mod failed_update;
mod fleet;
mod gate_command;
mod go_back;
mod heal;
pub mod history;
pub(in crate::service) mod image;
mod inspect;
mod kept;
mod late;
mod maintenance;
mod newer_tags;
mod permit;
mod request;
mod rollout;
pub mod running;
pub mod shared;
mod siblings;
mod start;
mod stop;
mod swarm_view;
