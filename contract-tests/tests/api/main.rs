//! The agent's API as one binary: who may ask, what is shown, and clients by the hundred. No engine is needed.

mod access;
mod load;
mod observe;
