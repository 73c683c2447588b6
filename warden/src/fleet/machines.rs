//! The machines of the configured agents, as last read from the store.

use std::collections::{HashMap, HashSet};

use super::Machine;

/// All known machines; only the configured ones are shown.
#[derive(Debug, Default)]
pub struct Machines {
    /// Ids of the configured agents, in configuration order.
    configured: Vec<String>,
    /// Whether the configuration lists no other agents, such as those that are left out because of a fault.
    is_complete: bool,
    /// Ids that have been configured in this run: one that is missing now was removed here.
    former: HashSet<String>,
    known: HashMap<String, Machine>,
}

impl Machines {
    /// Creates the set for these agents, without any state.
    pub fn new(ids: impl IntoIterator<Item = String>) -> Self {
        let configured = ids.into_iter().collect();
        Self { configured, is_complete: true, former: HashSet::new(), known: HashMap::new() }
    }

    /// Replaces the configured agents. `is_complete`: whether the configuration lists no others.
    pub fn configure(&mut self, ids: impl IntoIterator<Item = String>, is_complete: bool) {
        self.former.extend(std::mem::take(&mut self.configured));
        self.configured = ids.into_iter().collect();
        self.is_complete = is_complete;
    }

    /// Forgets the state of all machines.
    pub fn clear(&mut self) {
        self.known.clear();
    }

    /// Updates a machine.
    pub fn update(&mut self, machine: Machine) {
        self.known.insert(machine.id().to_owned(), machine);
    }

    /// Returns the configured machines, in configuration order.
    pub fn all(&self) -> impl Iterator<Item = Machine> + '_ {
        self.configured
            .iter()
            .map(|id| self.known.get(id).cloned().unwrap_or_else(|| Machine::new(id.clone())))
    }

    /// Returns the ids of the configured machines, in configuration order.
    pub fn ids(&self) -> &[String] {
        &self.configured
    }

    /// Returns a function that reports whether an agent may be configured. While the list is not complete, any agent may be
    /// one of those that are left out. Without any agent there is rather no configuration than an empty fleet. `reporting`
    /// are agents that have reported lately: one that was not removed here may be in the list of another warden.
    pub fn may_be_configured(&self, reporting: &[String]) -> impl Fn(&str) -> bool + Send + Sync + use<> {
        let is_known = self.is_complete && !self.configured.is_empty();
        let elsewhere = reporting.iter().filter(|id| !self.former.contains(*id));
        let ids: Option<HashSet<String>> =
            is_known.then(|| self.configured.iter().chain(elsewhere).cloned().collect());
        move |id| ids.as_ref().is_none_or(|ids| ids.contains(id))
    }

    /// Returns the machine with this id.
    pub fn get(&self, id: &str) -> Option<&Machine> {
        self.known.get(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_machines_are_shown_in_order_and_the_others_are_remembered() {
        let mut machines = Machines::new(["a".to_owned(), "b".to_owned()]);
        let at = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut b = Machine::new("b".to_owned());
        b.record_heartbeat(Ok(()), at);
        machines.update(b.clone());
        let ids =
            |machines: &Machines| machines.all().map(|m| (m.id().to_owned(), m.online())).collect::<Vec<_>>();
        assert_eq!(ids(&machines), [("a".to_owned(), None), ("b".to_owned(), Some(true))]);
        machines.configure(["c".to_owned()], true);
        assert_eq!(ids(&machines), [("c".to_owned(), None)]);
        machines.configure(["b".to_owned(), "c".to_owned()], true);
        assert_eq!(ids(&machines)[0], ("b".to_owned(), Some(true)));
        let may_be = machines.may_be_configured(&[]);
        assert!(may_be("b") && !may_be("a"));
        machines.configure(["c".to_owned()], false);
        assert!(machines.may_be_configured(&[])("a"), "it may be one of those that are left out");
        machines.configure([], true);
        assert!(machines.may_be_configured(&[])("a"));
    }

    #[test]
    fn an_agent_that_reports_may_be_configured_elsewhere_unless_it_was_removed_here() {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let mut machines = Machines::new(ids(&["a", "b"]));
        let may_be = machines.may_be_configured(&ids(&["b", "y"]));
        assert!(may_be("a") && may_be("b") && may_be("y") && !may_be("z"));
        // It is left out for a fault before it is removed.
        machines.configure(ids(&["a"]), false);
        assert!(machines.may_be_configured(&ids(&["b"]))("b"));
        machines.configure(ids(&["a"]), true);
        assert!(!machines.may_be_configured(&ids(&["b"]))("b"));
        machines.configure(ids(&["b"]), true);
        let may_be = machines.may_be_configured(&ids(&["a", "b"]));
        assert!(may_be("b") && !may_be("a"));
    }
}
