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
    /// The machine does not have the address.
    Absent,
    /// The address can't be used at all.
    Unusable(String),
}

const ADDRESS: &str = "set api.address to an address of this machine, for example 127.0.0.1:9090";

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
            Holder::Absent
                if holders.iter().any(|(_, other)| matches!(other, Holder::Free | Holder::Agent)) =>
            {
                let words = Words {
                    what: "this machine does not have this address",
                    why: "the agent answers there only once it has",
                    remedy: "if it is not that of a network that comes up later, set api.address to one of this machine's",
                };
                found.push(words.warning(AREA, address.as_str()));
            }
            Holder::Absent => {
                let what = "this machine does not have this address";
                found.push(Words { what, why, remedy: ADDRESS }.error(AREA, address.as_str()));
            }
            Holder::Unusable(cause) => {
                found
                    .push(Words { what: cause.as_str(), why, remedy: ADDRESS }.error(AREA, address.as_str()));
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
    use super::super::finding::Severity;
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
    fn an_address_that_the_machine_does_not_have_is_an_error_only_if_there_is_no_other() {
        let levels = |other: Holder| {
            let holders =
                [("10.8.0.1:9090".to_owned(), Holder::Absent), ("127.0.0.1:9090".to_owned(), other)];
            let found = check(&holders, Path::new("/var/lib/evenkeel"), false);
            found.into_iter().map(|finding| finding.severity).collect::<Vec<_>>()
        };
        assert_eq!(levels(Holder::Free), [Severity::Warning]);
        assert_eq!(levels(Holder::Agent), [Severity::Warning]);
        assert_eq!(levels(Holder::Absent), [Severity::Error, Severity::Error]);
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
