//! Checks the addresses of the API, which must be free or in use by the agent itself, and whether another process has the
//! state open.

use std::path::Path;

use super::finding::{Finding, Words};

pub(super) const AREA: &str = "api";

/// The process that holds a listen address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// The address is free.
    Free,
    /// An Evenkeel agent.
    Agent,
    /// Another program, with a description.
    Other(String),
    /// The address can't be used at all.
    Unusable(String),
}

/// Returns the findings for each address. `state_in_use`: some process has the state open.
pub(super) fn check(holders: &[(String, Holder)], state: &Path, state_in_use: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    for (address, holder) in holders {
        let port = address.rsplit_once(':').map_or("", |(_, port)| port);
        let why = "the agent can't start until this is fixed";
        match holder {
            Holder::Free | Holder::Agent => {}
            Holder::Other(who) => {
                let what = format!("another program listens there: {who}");
                let remedy =
                    format!("stop it (`ss -ltnp 'sport = :{port}'` shows its name), or change api.address");
                found.push(Words { what, why, remedy }.error(AREA, address.as_str()));
            }
            Holder::Unusable(cause) => {
                let remedy = "set api.address to an address of this machine, for example 127.0.0.1:9090";
                found.push(Words { what: cause.as_str(), why, remedy }.error(AREA, address.as_str()));
            }
        }
    }
    if state_in_use && !holders.iter().any(|(_, holder)| *holder == Holder::Agent) {
        let words = Words {
            what: "another process uses the state, and no agent answers at api.address",
            why: "two agents can't share the same state: the second one does not start",
            remedy: format!(
                "stop it (`fuser -v {}` shows its name), or set another state.path for this agent",
                state.display()
            ),
        };
        found.push(words.error(AREA, "state.path"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(holder: Holder, state_in_use: bool) -> Vec<Finding> {
        check(&[("127.0.0.1:9090".to_owned(), holder)], Path::new("/var/lib/evenkeel"), state_in_use)
    }

    #[test]
    fn a_free_address_or_one_of_the_agent_has_no_finding() {
        assert_eq!(findings(Holder::Free, false), []);
        assert_eq!(findings(Holder::Agent, true), []);
    }

    #[test]
    fn a_conflicting_process_is_reported_with_a_remedy() {
        for (holder, state_in_use, remedy) in [
            (Holder::Other("it answers 404".into()), false, "ss -ltnp 'sport = :9090'"),
            (Holder::Unusable("cannot assign".into()), false, "127.0.0.1:9090"),
            (Holder::Free, true, "fuser -v /var/lib/evenkeel"),
        ] {
            let found = findings(holder, state_in_use);
            assert_eq!(found.len(), 1);
            assert!(found[0].remedy.contains(remedy), "{found:#?}");
        }
    }
}
