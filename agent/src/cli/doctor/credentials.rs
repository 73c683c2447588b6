//! The credentials that systemd passes to the agent (`LoadCredential=` and the like).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_common::config::source;

/// The credentials of a unit, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Credentials {
    /// Those that are loaded, with the file if its content is passed as it is.
    loaded: BTreeMap<String, Option<PathBuf>>,
    /// Those whose value is in the unit.
    set: BTreeSet<String>,
    /// Those that are taken from the system's stores if they are there. A name may end with `*`.
    imported: BTreeSet<String>,
}

impl Credentials {
    /// Reads the files of a unit, as `systemctl cat` prints them: `systemctl show` can't print credentials.
    pub(super) fn parse(files: &str) -> Self {
        let mut found = Self::default();
        // The further lines of a value begin with no key of these.
        for (key, value) in files.lines().filter_map(|line| line.split_once('=')) {
            found.assign(key.trim(), value.trim());
        }
        found
    }

    fn assign(&mut self, key: &str, value: &str) {
        let (name, rest) = value.split_once(':').unwrap_or((value, ""));
        let name = name.to_owned();
        match (key, value) {
            // An empty value removes those before it.
            ("LoadCredential" | "LoadCredentialEncrypted", "") => self.loaded.clear(),
            ("SetCredential" | "SetCredentialEncrypted", "") => self.set.clear(),
            ("ImportCredential", "") => self.imported.clear(),
            ("LoadCredential", _) => {
                let file = Some(PathBuf::from(rest)).filter(|path| path.is_absolute());
                self.loaded.insert(name, file);
            }
            ("LoadCredentialEncrypted", _) => {
                self.loaded.insert(name, None);
            }
            ("SetCredential" | "SetCredentialEncrypted", _) => {
                self.set.insert(name);
            }
            ("ImportCredential", _) => {
                let renamed = match rest {
                    "" => name,
                    prefix if name.ends_with('*') => format!("{prefix}*"),
                    whole => whole.to_owned(),
                };
                self.imported.insert(renamed);
            }
            _ => {}
        }
    }

    /// Reports whether the agent may have this one.
    pub(super) fn may_have(&self, name: &str) -> bool {
        let is_imported = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => name == pattern,
        };
        self.loaded.contains_key(name) || self.set.contains(name) || self.imported.iter().any(is_imported)
    }

    /// Returns the values of those that may be variables, as far as this user may read them: of the running agent, whose
    /// credentials are in `folder`, else of the files.
    pub(super) fn read(&self, folder: &Path) -> BTreeMap<String, String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let running = entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
        let files = self.loaded.iter().filter_map(|(name, path)| Some((name.clone(), path.clone()?)));
        let mut found = BTreeMap::new();
        for (name, path) in running.chain(files).filter(|(name, _)| is_variable(name)) {
            if let Entry::Vacant(place) = found.entry(name)
                && let Ok(text) = source::read(&path)
            {
                place.insert(text.trim_end_matches(['\n', '\r']).to_owned());
            }
        }
        found
    }
}

fn is_variable(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_every_kind_are_found_in_the_files_of_the_unit() {
        let found = Credentials::parse(
            "# /usr/lib/systemd/system/evenkeel-agent.service\n[Service]\n# LoadCredential=REMARK:/x\n\
             LoadCredential=DROPPED:/x\nSetCredential=KEPT: a\n\n# /etc/systemd/system/evenkeel-agent.service.d/a.conf\n[Service]\n\
             LoadCredential=\nLoadCredential=PUSH_TOKEN:/etc/token\nLoadCredential = BARE\n\
             LoadCredentialEncrypted=SMTP_PASSWORD:/etc/credstore.encrypted/smtp\n\
             SetCredentialEncrypted=HOOK: \\\n        k6iUCUh0RJCQyvL8k8q1UyAAAAABAAAA \\\n        NAAAAAgAAAA=\n\
             ImportCredential=EK_*\nImportCredential=ONE\nImportCredential=chat.*:CHAT_\n",
        );
        for name in ["PUSH_TOKEN", "BARE", "SMTP_PASSWORD", "KEPT", "HOOK", "EK_A", "ONE", "CHAT_URL"] {
            assert!(found.may_have(name), "{name}: {found:?}");
        }
        for name in ["REMARK", "DROPPED", "ONE_MORE", "OTHER"] {
            assert!(!found.may_have(name), "{name}: {found:?}");
        }
    }

    #[test]
    fn the_values_of_the_running_agent_count_before_those_in_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("running")).unwrap();
        for (name, text) in [
            ("running/A", "now\n"),
            ("running/IMPORTED", "x"),
            ("running/tls.key", "k"),
            ("a", "later"),
            ("b", "b"),
        ] {
            fs::write(path(name), text).unwrap();
        }
        let (a, b) = (path("a"), path("b"));
        let unit = format!(
            "LoadCredential=A:{}\nLoadCredential=B:{}\nLoadCredential=C:/none\nLoadCredentialEncrypted=D:{}\n",
            a.display(),
            b.display(),
            b.display()
        );
        let credentials = Credentials::parse(&unit);
        let values = |folder: &Path| -> Vec<String> {
            credentials.read(folder).into_iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        assert_eq!(values(&path("running")), ["A=now", "B=b", "IMPORTED=x"]);
        assert_eq!(values(&path("stopped")), ["A=later", "B=b"]);
    }
}
