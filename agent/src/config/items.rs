//! A list in the configuration.

/// Elements of an array that are validated individually; invalid ones are `None`.
pub(super) type Items<T> = Vec<Option<T>>;
