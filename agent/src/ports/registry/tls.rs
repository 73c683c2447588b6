//! TLS towards registries: that of all our clients, and the one that takes any certificate.

pub(crate) use evenkeel_common::tls::client_config;
pub(super) use evenkeel_common::tls::unverified_client_config;
