//! The machines of the configured agents, as last read from the store.

use std::collections::HashMap;

use super::Machine;

/// All known machines; only the configured ones are shown.
#[derive(Debug, Default)]
pub struct Machines {
    /// Ids of the configured agents, in configuration order.
    configured: Vec<String>,
    known: HashMap<String, Machine>,
}

impl Machines {
    /// Creates the set for these agents, without any state.
    pub fn new(ids: impl IntoIterator<Item = String>) -> Self {
        Self { configured: ids.into_iter().collect(), known: HashMap::new() }
    }

    /// Replaces the configured agents.
    pub fn configure(&mut self, ids: impl IntoIterator<Item = String>) {
        self.configured = ids.into_iter().collect();
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
        machines.configure(["c".to_owned()]);
        assert_eq!(ids(&machines), [("c".to_owned(), None)]);
        machines.configure(["b".to_owned(), "c".to_owned()]);
        assert_eq!(ids(&machines)[0], ("b".to_owned(), Some(true)));
    }
}
