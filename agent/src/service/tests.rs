//! Stories of the decision core.
