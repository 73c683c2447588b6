//! What users are shown of a service: views of its state, never stored. They read everything, and nothing reads them.

mod runtime;
pub mod status;
pub mod why;
