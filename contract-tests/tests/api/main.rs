//! Tests without an engine, as one binary: access to the agent's API, its responses and streams, hundreds of clients,
//! hostile input, and the agent's warden client.

mod access;
mod fleet_size;
mod fuzz;
mod load;
mod observe;
mod wardens;
