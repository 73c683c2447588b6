//! The ground floor: values without I/O that every layer above shares.
//!
//! | file | what it describes |
//! |---|---|
//! | `image.rs` | image references, digests and image IDs |
//! | `container.rs` | containers, their states, health checks and events |
//! | `project.rs` | compose projects and the ways to bring them up |
//! | `compose.rs` | what compose files come to (`compose config`) |
//! | `signature.rs` | what the signatures of an image come to |
//! | `swarm.rs` | a service of a swarm, its tasks and its update
//! | `errors.rs` | what engine, swarm, registry and compose could not do |
//! | `window.rs` | weekly hours in a time zone |
//! | `env_file.rs` | where an env file sets a variable, and how one value is replaced |
//! | `tags.rs` | which tags are newer than the one in use |
//! | `few.rs` | a map of few entries |
//! | `text.rs`, `output.rs` | text from outside, made fit to be shown, stored and compared |

pub mod compose;
pub mod container;
pub mod env_file;
pub mod errors;
pub mod few;
pub mod image;
pub mod output;
pub mod platform;
pub mod project;
pub mod signature;
pub mod swarm;
pub mod tags;
pub mod text;
pub mod window;

pub use compose::{Model, ModelService};
pub use container::{
    Container, ContainerEvent, CurrentOwner, EventKind, HealthState, HealthTiming, Manager, Members,
    NetworkOwner, State, Usage,
};
pub use errors::{ComposeError, EngineError, RegistryError, SwarmError};
pub use image::{Digest, ImageId, Reference, Repository};
pub use platform::Platform;
pub use project::{Project, PullPolicy, UpMode};
pub use signature::{SignatureError, SignatureFlaw, SignatureVerdict};
