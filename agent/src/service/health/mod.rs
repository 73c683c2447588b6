//! What is well and what is not: values without knowledge of the service.
//!
//! | file | what it holds |
//! |---|---|
//! | `assess.rs` | the condition of a container: the only definition of "healthy" |
//! | `gap.rs` | gaps in the event stream: who stopped containers meanwhile |
//! | `restart_state.rs` | when a container is restarted, and when to give up |
//! | `healer.rs` | which container is failing, and the remedy |

pub mod assess;
pub mod gap;
pub mod healer;
pub mod restart_state;
