//! A compact map for few entries.
//!
//! Most services have one image and one container. A `BTreeMap` allocates room for eleven entries with the first one, which
//! costs half a kilobyte per service.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A map backed by a vector sorted by key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FewMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for FewMap<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Ord, V> FewMap<K, V> {
    /// Returns the value of a key.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.find(key).ok().map(|at| &self.0[at].1)
    }

    /// Sets the value of a key and returns the previous one.
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

    /// Removes a key and returns its value.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.find(key).ok().map(|at| self.0.remove(at).1)
    }

    /// Returns the value of a key, which is created if there is none.
    pub fn entry<Q>(&mut self, key: &Q) -> &mut V
    where
        K: Borrow<Q> + for<'a> From<&'a Q>,
        Q: Ord + ?Sized,
        V: Default,
    {
        let at = self.find(key).unwrap_or_else(|at| {
            self.0.reserve_exact(1);
            self.0.insert(at, (K::from(key), V::default()));
            at
        });
        &mut self.0[at].1
    }

    /// Iterates over the entries in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The same, with values that can be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    /// Keeps only the keys for which the predicate holds.
    pub fn retain_keys(&mut self, mut is_wanted: impl FnMut(&K) -> bool) {
        self.0.retain(|(key, _)| is_wanted(key));
    }

    /// Iterates over the values mutably.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }

    /// Reports whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the position of a key, or where to insert it.
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
    fn keys_are_unique_and_sorted() {
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
    fn it_serializes_like_any_other_map() {
        let text = r#"{"a":1,"b":2}"#;
        let read: FewMap<String, u32> = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), text);
        assert_eq!(serde_json::from_str::<FewMap<String, u32>>(r#"{"b":2,"a":1}"#).unwrap(), read);
        assert_eq!(serde_json::to_string(&FewMap::<String, u32>::default()).unwrap(), "{}");
    }
}
