//! The ground floor: values without I/O that every layer above shares.
//!
//! | file | what it describes |
//! |---|---|
//! | `image.rs` | image references, digests and image IDs |
//! | `container.rs` | containers, their states, health checks and events |
//! | `project.rs` | compose projects and the ways to bring them up |
//! | `compose.rs` | what compose files come to (`compose config`) |
//! | `signature.rs` | what the signatures of an image come to |
//! | `errors.rs` | what engine, registry and compose could not do |
//! | `window.rs` | weekly hours in a time zone |
//! | `tags.rs` | which tags are newer than the one in use |
//! | `text.rs`, `output.rs` | text from outside, made fit to be shown, stored and compared |

pub mod compose;
pub mod container;
pub mod errors;
pub mod image;
pub mod output;
pub mod project;
pub mod signature;
pub mod tags;
pub mod text;
pub mod window;

pub use compose::{Model, ModelService};
pub use container::{
    Container, ContainerEvent, CurrentOwner, EventKind, HealthState, HealthTiming, Manager, Members,
    NetworkOwner, State, Usage,
};
pub use errors::{ComposeError, EngineError, RegistryError};
pub use image::{Digest, ImageId, Reference, Repository};
pub use project::{Project, UpMode};
pub use signature::{SignatureError, SignatureFlaw, SignatureVerdict};
