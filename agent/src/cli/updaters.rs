//! Programs that update, restart or watch containers, by the last component of their image's path or by their process name.

/// What a program does to the containers of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Does {
    /// It deploys images.
    Update,
    /// It restarts what is unhealthy.
    Restart,
    /// It does neither by itself, but is not to be updated like other containers.
    Neither,
}

/// The known programs. `adopt` lists none of them: two updaters on one container undo each other's work, and an updater that
/// updates itself dies in the middle of it. `doctor` reports those that interfere.
pub(super) const KNOWN: [(&str, Does); 18] = [
    ("autoheal", Does::Restart),
    ("diun", Does::Neither),
    ("docker-autoheal", Does::Restart),
    ("dockcheck", Does::Update),
    ("dockward", Does::Update),
    ("dockward-warden", Does::Neither),
    ("drydock", Does::Update),
    ("evenkeel", Does::Neither),
    ("evenkeel-agent", Does::Neither),
    ("evenkeel-warden", Does::Neither),
    ("gantry", Does::Update),
    ("ouroboros", Does::Update),
    ("shepherd", Does::Update),
    ("swarm-cronjob", Does::Neither),
    ("tugtainer", Does::Update),
    ("watchtower", Does::Update),
    ("whats-up-docker", Does::Update),
    ("wud", Does::Update),
];

/// Returns the program with this name.
pub(super) fn known(name: &str) -> Option<(&'static str, Does)> {
    KNOWN.into_iter().find(|(known, _)| *known == name)
}
