//! What happens beside updates: values without knowledge of the service.
//!
//! | file | what it holds |
//! |---|---|
//! | `gauges.rs` | the last measurement of the containers, and the times of the last alerts |
//! | `late.rs` | the watch over a new image after its probation |
//! | `maintenance.rs` | newer tags, images that can be removed, whether a rollback would be possible |
//! | `newer_tags.rs` | which newer tags are known, and which have failed |
//! | `start.rs` | containers that are stuck during creation |

pub mod gauges;
pub mod late;
pub mod maintenance;
pub mod newer_tags;
pub mod start;
