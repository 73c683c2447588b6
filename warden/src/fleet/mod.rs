//! What is known of agents, by value: what is a duplicate, what is missing, who is online. No I/O, no clock.

pub mod entry;
mod machine;
mod machines;
mod sequence;

pub use machine::Machine;
pub use machines::Machines;
