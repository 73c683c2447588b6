//! What Evenkeel's daemons agree on: the wire types, and the plumbing both stand on.
//!
//! | module | what it holds |
//! |---|---|
//! | [`wire`] | every type that is seen from outside |

pub mod wire;
