//! Authentication: whose token it is, sessions of people, and limits on guessing.

pub mod throttle;
pub mod tokens;
