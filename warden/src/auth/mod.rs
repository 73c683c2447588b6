//! Authentication: tokens, sessions of users, and limits on guessing.

pub mod throttle;
pub mod tokens;
