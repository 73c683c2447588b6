//! A map of few entries that takes no more memory than they do.
//!
//! Most services have one image and one container. A `BTreeMap` has room for eleven entries as soon as it has one, which is
//! half a kilobyte in each service.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map whose entries stand in the order of their keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FewMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for FewMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> FewMap<K, V> {
    /// The value of a key.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// Sets the value of a key; the one that it had.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(at) => Some(std::mem::replace(&mut self.0[at].1, value)),
            Err(at) => {
                self.0.reserve_exact(1);
                self.0.insert(at, (key, value));
                None
            }
        }
    }

    /// Takes a key and its value out.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.find(key).ok().map(|at| self.0.remove(at).1)
    }

    /// Keeps only the keys that are wanted.
    pub fn retain_keys(&mut self, mut is_wanted: impl FnMut(&K) -> bool) {
        self.0.retain(|(key, _)| is_wanted(key));
    }

    /// All values, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where a key is, or has to be.
    fn find<Q>(&self, key: &Q) -> Result<usize, usize>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.0.binary_search_by(|(known, _)| known.borrow().cmp(key))
    }
}

impl<K: Ord, V> Extend<(K, V)> for FewMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for FewMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::default();
        map.extend(entries);
        map
    }
}

impl<K: Serialize, V: Serialize> Serialize for FewMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<'de, K: Ord + Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for FewMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut entries = Vec::from_iter(BTreeMap::deserialize(deserializer)?);
        entries.shrink_to_fit();
        Ok(Self(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_map_in_the_order_of_its_keys() {
        let mut map: FewMap<String, u32> =
            [("b", 2), ("a", 1), ("b", 3)].map(|(k, v)| (k.to_owned(), v)).into_iter().collect();
        assert_eq!((map.get("a"), map.get("b"), map.get("c")), (Some(&1), Some(&3), None));
        assert_eq!(map.insert("a".to_owned(), 4), Some(1));
        map.values_mut().for_each(|value| *value += 1);
        assert_eq!(map.remove("a"), Some(5));
        assert_eq!(map.remove("a"), None);
        map.retain_keys(|key| key != "b");
        assert!(map.is_empty());
    }

    #[test]
    fn it_is_written_and_read_as_any_other_map() {
        let text = r#"{"a":1,"b":2}"#;
        let read: FewMap<String, u32> = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(serde_json::from_str::<FewMap<String, u32>>(r#"{"b":2,"a":1}"#).unwrap(), read);
        assert_eq!(serde_json::to_string(&FewMap::<String, u32>::default()).unwrap(), "{}");
    }
}
