//! Plain values without I/O, shared by all layers above.
//!
//! | file | what it describes |
//! |---|---|
//! | `image.rs` | image references, digests and image IDs |
//! | `container.rs` | containers, their states, health checks and events |
//! | `project.rs` | compose projects and the modes of `up` |
//! | `compose.rs` | the resolved compose model (`compose config`) |
//! | `definition/` | what compose would deploy, compared with what runs |
//! | `signature.rs` | results of signature verification |
//! | `swarm.rs` | swarm services, their tasks and updates |
//! | `errors.rs` | errors of engine, swarm, registry and compose |
//! | `window.rs` | weekly time windows in a time zone |
//! | `env_file.rs` | parsing an env file and replacing one value in it |
//! | `tags.rs` | which tags are newer than the current one |
//! | `image_config.rs` | how the configuration of a new image differs from the running one |
//! | `handover.rs` | which compose services may run twice for a while, and why others can't |
//! | `hooks.rs` | commands that run before and after a deployment |
//! | `probe.rs` | what the containers of a new image must answer |
//! | `few.rs` | a compact map for few entries |
//! | `machine.rs` | what engines say if a machine can't give a container what it needs |
//! | `mount_table.rs` | what is mounted where, as seen by a process |
//! | `text.rs`, `output.rs` | sanitizing external text for display, storage and comparison |

pub mod compose;
pub mod container;
pub mod definition;
pub mod env_file;
pub mod errors;
pub mod few;
pub mod handover;
pub mod hooks;
pub mod image;
pub mod image_config;
pub mod machine;
pub(crate) mod mount_table;
pub mod output;
pub mod platform;
pub mod probe;
pub mod project;
pub mod signature;
pub mod snapshot;
pub mod swarm;
pub mod tags;
pub mod text;
pub mod window;

pub use compose::{Model, ModelService};
pub use container::{
    Awaited, Container, ContainerEvent, EventKind, HealthState, HealthTiming, Manager, Members, Need,
    NetworkOwner, NetworkOwnerState, RestartPolicy, State, Usage,
};
pub use definition::{Difference, Rendered, Running};
pub use errors::{ComposeError, EngineError, IfFound, RegistryError, SwarmError};
pub use handover::{Drain, Obstacle, Order};
pub use hooks::{HookEvent, Hooks};
pub use image::{Digest, ImageId, Reference, Repository};
pub use platform::Platform;
pub use probe::Probe;
pub use project::{Origin, Project, PullPolicy, UpMode};
pub use signature::{SignatureError, SignatureFlaw, SignatureVerdict, Signers};
