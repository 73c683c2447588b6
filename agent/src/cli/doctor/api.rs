//! The addresses of the API: free, or held by the agent itself; and whether the state is another process's.

use std::path::Path;

use super::finding::{Finding, Words};

pub(super) const AREA: &str = "api";

/// Who is at a listen address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holder {
    /// Nobody: the agent does not run, or not here.
    Nobody,
    /// An agent of this program.
    Agent,
    /// Another program; what is known of it.
    Other(String),
    /// It can't be listened on at all.
    Impossible(String),
}

/// What is wrong, by address. `state_in_use` tells whether a process has the state open.
pub(super) fn check(holders: &[(String, Holder)], state: &Path, state_in_use: bool) -> Vec<Finding> {
    let mut found = Vec::new();
    for (address, holder) in holders {
        let port = address.rsplit_once(':').map_or("", |(_, port)| port);
        let why = "the agent can't start while that is so";
        match holder {
            Holder::Nobody | Holder::Agent => {}
            Holder::Other(who) => {
                let what = format!("another program listens there: {who}");
                let remedy = format!("end it (`ss -ltnp 'sport = :{port}'` names it), or change api.address");
                found.push(Words { what, why, remedy }.error(AREA, address.as_str()));
            }
            Holder::Impossible(cause) => {
                let remedy = "set api.address to an address of this machine, for example 127.0.0.1:9090";
                found.push(Words { what: cause.as_str(), why, remedy }.error(AREA, address.as_str()));
            }
        }
    }
    if state_in_use && !holders.iter().any(|(_, holder)| *holder == Holder::Agent) {
        let words = Words {
            what: "another process uses the state, and no agent answers at api.address",
            why: "two agents must not run on the same state: the second one does not start",
            remedy: format!(
                "end it (`fuser -v {}` names it), or give this one a state.path of its own",
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
    fn an_address_that_is_free_or_the_agents_own_has_no_finding() {
        assert_eq!(findings(Holder::Nobody, false), []);
        assert_eq!(findings(Holder::Agent, true), []);
    }

    #[test]
    fn who_is_in_the_way_is_named_with_what_to_do() {
        for (holder, state_in_use, remedy) in [
            (Holder::Other("it answers 404".into()), false, "ss -ltnp 'sport = :9090'"),
            (Holder::Impossible("cannot assign".into()), false, "127.0.0.1:9090"),
            (Holder::Nobody, true, "fuser -v /var/lib/evenkeel"),
        ] {
            let found = findings(holder, state_in_use);
            assert_eq!(found.len(), 1);
            assert!(found[0].remedy.contains(remedy), "{found:#?}");
        }
    }
}
