//! Tests of the complete programs on a real engine with a real registry. They are one binary, so that harness and
//! dependencies are linked only once. `.config/nextest.toml` and `dist/scripts/engine-suites.sh` select modules by the
//! path of a test (`test(/^matrix::/)`).

mod adopt;
mod ci;
mod cleanup;
mod compose;
mod definition;
mod doctor;
mod engine;
mod facts;
mod fleet;
mod gates;
mod go_back;
mod handover;
mod handover_load;
mod harness;
mod heal;
mod hooks;
mod kill;
mod matrix;
mod podman;
mod probes;
mod projects;
mod push;
mod recovery;
mod registry;
mod reload;
mod rollback;
mod signed;
mod snapshot;
mod snapshot_load;
mod socket_proxy;
mod stop;
mod storm;
mod swarm;
mod swarm_edges;
mod swarm_gates;
mod swarm_manual;
mod swarm_nodes;
mod swarm_spec;
mod swarm_states;
mod tag_variable;
mod update;
mod warden;
