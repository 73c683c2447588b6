//! What needs no engine, as one binary: who may ask the agent's API, what it shows, clients by the hundred, hostile
//! input, and the agent's client of the wardens.

mod access;
mod fuzz;
mod load;
mod observe;
mod wardens;
