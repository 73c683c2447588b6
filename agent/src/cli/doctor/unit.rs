//! Checks the agent's systemd unit: whether it is running with this file, and has the permissions and variables it needs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use evenkeel_common::config::expand::is_shown;

use super::credentials::Credentials;
use super::finding::{Finding, Words};

pub(super) const AREA: &str = "service unit";
/// The unit installed by the packages.
pub(super) const UNIT: &str = "evenkeel-agent.service";
/// The properties to query.
pub(super) const PROPERTIES: &str = "LoadState,ActiveState,ExecMainStatus,UnitFileState,NeedDaemonReload,ExecStart,\
     EnvironmentFiles,Environment,ProtectSystem,ReadWritePaths,StateDirectory,LogsDirectory,CapabilityBoundingSet,User";

/// A unit, as shown by `systemctl show` and `systemctl cat`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unit {
    properties: BTreeMap<String, String>,
    /// What systemd passes to the agent in files.
    pub(super) credentials: Credentials,
}

impl Unit {
    /// Parses the output of `systemctl show` and `systemctl cat`; `None` if there is no such unit.
    pub(super) fn parse(properties: &str, files: &str) -> Option<Self> {
        let mut unit = Self { properties: BTreeMap::new(), credentials: Credentials::parse(files) };
        for (name, value) in properties.lines().filter_map(|line| line.split_once('=')) {
            // Each environment file has a line of its own.
            let values = unit.properties.entry(name.to_owned()).or_default();
            values.push_str(if values.is_empty() { "" } else { " " });
            values.push_str(value);
        }
        (unit.get("LoadState") == "loaded").then_some(unit)
    }

    fn get(&self, name: &str) -> &str {
        self.properties.get(name).map_or("", String::as_str)
    }

    /// Returns the environment files (`EnvironmentFile=`).
    pub(super) fn environment_files(&self) -> Vec<PathBuf> {
        let files = self.get("EnvironmentFiles").split_whitespace();
        files.filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
    }

    /// Returns the variables that are set in the unit itself (`Environment=`).
    fn variables(&self) -> BTreeMap<String, String> {
        let words = words(self.get("Environment")).into_iter();
        let pair =
            |word: String| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        words.filter_map(pair).collect()
    }

    /// Returns the variables of the unit and of its files, which come after it, that are not set otherwise.
    pub(super) fn unset(
        &self,
        of_files: BTreeMap<String, String>,
        is_set: impl Fn(&str) -> bool,
    ) -> BTreeMap<String, String> {
        let mut variables = self.variables();
        variables.extend(of_files);
        variables.retain(|name, _| !name.is_empty() && !is_set(name));
        variables
    }

    /// Returns the configuration file on its command line.
    fn config(&self) -> Option<&str> {
        let words: Vec<&str> = self.get("ExecStart").split_whitespace().collect();
        let at = words.iter().position(|word| *word == "--config")?;
        words.get(at + 1).copied()
    }

    /// Reports whether the unit's sandbox lets it write to a folder.
    fn may_write(&self, folder: &Path) -> bool {
        if self.get("ProtectSystem") != "strict" {
            return true;
        }
        let named = |key| self.get(key).split_whitespace();
        let listed = named("ReadWritePaths").map(|path| PathBuf::from(path.trim_start_matches(['-', '+'])));
        let state = named("StateDirectory").map(|name| Path::new("/var/lib").join(name));
        let logs = named("LogsDirectory").map(|name| Path::new("/var/log").join(name));
        listed.chain(state).chain(logs).any(|allowed| folder.starts_with(allowed))
    }

    /// Reports whether it runs as root without this capability, or this group of capabilities.
    fn lacks(&self, capability: &str) -> bool {
        self.properties.contains_key("CapabilityBoundingSet")
            && matches!(self.get("User"), "" | "root")
            && !self.get("CapabilityBoundingSet").contains(capability)
    }
}

/// Splits the value of a property. systemd quotes words with spaces and the like, as `"…"` or `$'…'`.
fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (' ', None) => words.extend(word.take()),
            ('$', None) if word.is_none() && chars.peek() == Some(&'\'') => {}
            ('"' | '\'', None) if word.is_none() => {
                quote = Some(c);
                word = Some(String::new());
            }
            (_, Some(end)) if c == end => quote = None,
            ('\\', Some(_)) => word.get_or_insert_default().push(match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                escaped => escaped.unwrap_or(c),
            }),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Something that the agent writes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Written {
    path: PathBuf,
    /// The folder in which files are created, without symbolic links.
    folder: PathBuf,
    /// What happens if it can't be written.
    why: &'static str,
    /// The capabilities that root needs for it.
    needs: Vec<&'static str>,
}

impl Written {
    /// Files in a folder.
    pub(super) fn in_folder(path: &Path) -> Self {
        let needs = path.metadata().map(|about| Owner::of(&about).to_create_in()).unwrap_or_default();
        let why = "everything that the agent writes there is lost";
        Self { path: path.to_owned(), folder: path.to_owned(), why, needs: needs.into_iter().collect() }
    }

    /// An env file with a tag, which is replaced and keeps its owner; `None` if there is no such file.
    pub(super) fn tag(path: &Path) -> Option<Self> {
        let real = path.canonicalize().ok()?;
        let folder = real.parent()?.to_owned();
        let (file, around) = (Owner::of(&real.metadata().ok()?), Owner::of(&folder.metadata().ok()?));
        let needs = around.to_create_in().into_iter().chain(file.to_give_away()).collect();
        Some(Self { path: path.to_owned(), folder, why: "newer tags are reported, but not deployed", needs })
    }

    /// Returns what prevents the unit from writing it.
    fn check(&self, unit: &Unit) -> Vec<Finding> {
        let mut found = Vec::new();
        let folder = self.folder.display();
        if !unit.may_write(&self.folder) {
            let words = Words {
                what: format!("{folder} is read-only for it"),
                why: self.why,
                remedy: format!("`systemctl edit evenkeel-agent`: [Service] ReadWritePaths={folder}"),
            };
            found.push(words.error(AREA, UNIT));
        }
        let lacking: Vec<&str> = self.needs.iter().copied().filter(|name| unit.lacks(name)).collect();
        if !lacking.is_empty() {
            let foreign = if lacking.contains(&CREATE_ANYWHERE) { &self.folder } else { &self.path };
            let owned = if self.path == self.folder { "it" } else { "the file and its folder" };
            let names = lacking.join(" ").to_uppercase();
            let words = Words {
                what: format!("{} belongs to another user or group, and it lacks {names}", foreign.display()),
                why: self.why,
                remedy: format!(
                    "`systemctl edit evenkeel-agent`: [Service] CapabilityBoundingSet={names}; or let root own {owned}"
                ),
            };
            found.push(words.error(AREA, UNIT));
        }
        found
    }
}

/// The capability to create files in folders of other users.
const CREATE_ANYWHERE: &str = "cap_dac_override";

/// Owner and mode of a file or a folder.
#[derive(Debug, Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl Owner {
    fn of(about: &Metadata) -> Self {
        Self { uid: about.uid(), gid: about.gid(), mode: about.mode() }
    }

    /// Returns what root needs to create and remove files in this folder.
    fn to_create_in(self) -> Option<&'static str> {
        let may = |bits| self.mode & bits == bits;
        (self.uid != 0 && !(self.gid == 0 && may(0o030)) && !may(0o003)).then_some(CREATE_ANYWHERE)
    }

    /// Returns what root needs to give a new file this owner, and then its mode.
    fn to_give_away(self) -> impl Iterator<Item = &'static str> {
        let chown = (self.uid, self.gid) != (0, 0);
        chown.then_some("cap_chown").into_iter().chain((self.uid != 0).then_some("cap_fowner"))
    }
}

/// The unit and the facts to compare it with.
pub(super) struct Facts<'a> {
    pub(super) unit: &'a Unit,
    /// The configuration file that was checked.
    pub(super) config: &'a Path,
    /// What the agent writes.
    pub(super) writes: BTreeSet<Written>,
    /// Files that root can't read without additional capabilities.
    pub(super) private: Vec<PathBuf>,
    /// The engine's socket, if root can't connect to it without additional capabilities.
    pub(super) socket: Option<PathBuf>,
    /// Whether the configuration needs `podman compose`.
    pub(super) runs_podman_compose: bool,
    /// Variables referenced in the configuration.
    pub(super) needed: &'a BTreeSet<String>,
    /// Variables in the unit's environment files, and credentials whose value is known.
    pub(super) given: BTreeSet<String>,
}

/// Returns the findings.
pub(super) fn check(facts: &Facts<'_>) -> Vec<Finding> {
    let unit = facts.unit;
    let mut found = Vec::new();
    if unit.get("ActiveState") == "failed" {
        let status = unit.get("ExecMainStatus");
        let remedy = match status {
            "78" => "correct the configuration, then `systemctl restart evenkeel-agent`",
            _ => "see `journalctl -u evenkeel-agent -n 50`, then `systemctl restart evenkeel-agent`",
        };
        let what = format!("it failed with exit status {status}");
        found.push(Words { what, why: "no agent runs", remedy }.error(AREA, UNIT));
    }
    if unit.get("UnitFileState") == "disabled" {
        let what = "it is not enabled at boot";
        let words = Words {
            what,
            why: "no agent runs after a reboot",
            remedy: "`systemctl enable --now evenkeel-agent`",
        };
        found.push(words.warning(AREA, UNIT));
    }
    if unit.get("NeedDaemonReload") == "yes" {
        let what = "its unit file was changed, but not reloaded";
        let remedy = "`systemctl daemon-reload && systemctl restart evenkeel-agent`";
        found.push(Words { what, why: "it runs with the old settings", remedy }.warning(AREA, UNIT));
    }
    if let Some(config) = unit.config().filter(|config| Path::new(config) != facts.config) {
        let words = Words {
            what: format!("it runs with {config}, but {} was checked", facts.config.display()),
            why: "these findings may not apply to the running agent",
            remedy: format!("check the other file: `evenkeel doctor --config {config}`"),
        };
        found.push(words.warning(AREA, UNIT));
    }
    found.extend(facts.writes.iter().flat_map(|written| written.check(unit)));
    for path in facts.private.iter().filter(|_| unit.lacks("cap_dac")) {
        let words = Words {
            what: format!("{} belongs to another user and is private", path.display()),
            why: "the unit has no permission to read it: its service can't be updated",
            remedy: "install dist/systemd/read-homes.conf as a drop-in of the unit, or make the file world-readable",
        };
        found.push(words.error(AREA, UNIT));
    }
    found.extend(at_engine(facts));
    let of_unit = unit.variables();
    let is_given = |name: &String| {
        of_unit.contains_key(name) || unit.credentials.may_have(name) || facts.given.contains(name)
    };
    let needed = facts.needed.iter().filter(|name| is_shown(name));
    for variable in needed.filter(|variable| !is_given(variable)) {
        let words = Words {
            what: format!("the configuration uses {variable}, but the unit does not set it"),
            why: "the channel or push that needs it is off in the agent, even if your shell sets it",
            remedy: format!(
                "add {variable}=… to /etc/evenkeel/agent.env, or LoadCredential={variable}:PATH to the unit"
            ),
        };
        found.push(words.error(AREA, UNIT));
    }
    found
}

/// Returns the capabilities that the unit lacks to use the engine.
fn at_engine(facts: &Facts<'_>) -> Vec<Finding> {
    let socket = facts.socket.as_ref().map(|path| {
        let what = format!("the engine's socket {} belongs to another user", path.display());
        ("CAP_DAC_OVERRIDE", what, "the agent can't connect to the engine")
    });
    let compose = facts.runs_podman_compose.then(|| {
        let why = "`podman compose` assumes rootless mode without it: no compose project can be updated";
        ("CAP_SYS_ADMIN", "\"runtime\" is podman".to_owned(), why)
    });
    let needs = socket.into_iter().chain(compose);
    let lacking = needs.filter(|(capability, ..)| facts.unit.lacks(&capability.to_lowercase()));
    let finding = |(capability, what, why): (&str, String, &str)| {
        let words = Words {
            what: format!("{what}, and it lacks {capability}"),
            why,
            remedy: format!("`systemctl edit evenkeel-agent`: [Service] CapabilityBoundingSet={capability}"),
        };
        words.error(AREA, UNIT)
    };
    lacking.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_common::permissions::is_private;

    use super::super::finding::Severity;
    use super::*;

    const GOOD: &str = "LoadState=loaded\nActiveState=active\nExecMainStatus=0\nUnitFileState=enabled\nNeedDaemonReload=no\n\
        ExecStart={ path=/usr/bin/evenkeel ; argv[]=/usr/bin/evenkeel --config /etc/evenkeel/config.json ; status=0/0 }\n\
        EnvironmentFiles=/etc/evenkeel/agent.env (ignore_errors=yes)\nEnvironment=HOME=/root\n\
        ProtectSystem=strict\nReadWritePaths=-/root/.gnupg\nStateDirectory=evenkeel\n\
        LogsDirectory=evenkeel\nCapabilityBoundingSet=\nUser=\n";

    fn written(path: &str, folder: &str, why: &'static str, needs: &[&'static str]) -> Written {
        Written { path: path.into(), folder: folder.into(), why, needs: needs.to_vec() }
    }

    fn findings(text: &str, change: impl FnOnce(&mut Facts<'_>)) -> Vec<Finding> {
        findings_with("LoadCredential=WARDEN_TOKEN:/etc/evenkeel/warden.token\n", text, change)
    }

    fn findings_with(files: &str, text: &str, change: impl FnOnce(&mut Facts<'_>)) -> Vec<Finding> {
        let unit = Unit::parse(text, files).unwrap();
        let needed = BTreeSet::from(["WARDEN_TOKEN".to_owned()]);
        let mut facts = Facts {
            unit: &unit,
            config: Path::new("/etc/evenkeel/config.json"),
            writes: ["/var/lib/evenkeel", "/var/log/evenkeel"]
                .map(|path| written(path, path, "everything is lost", &[]))
                .into(),
            private: Vec::new(),
            socket: None,
            runs_podman_compose: false,
            needed: &needed,
            given: BTreeSet::new(),
        };
        change(&mut facts);
        check(&facts)
    }

    #[test]
    fn the_packaged_unit_has_no_finding() {
        assert_eq!(findings(GOOD, |_| ()), []);
        assert_eq!(Unit::parse("LoadState=not-found\nActiveState=inactive\n", ""), None);
        let unit = Unit::parse(GOOD, "").unwrap();
        assert_eq!(unit.environment_files(), [PathBuf::from("/etc/evenkeel/agent.env")]);
    }

    #[test]
    fn the_variables_of_the_unit_and_its_files_that_are_not_set_here_are_found() {
        let text = GOOD.replace(
            "Environment=HOME=/root",
            r#"Environment=HOME=/root DOCKER_HOST=unix:///run/a.sock "NAME=a \"b\"" $'ONE=it\'s $5' NO_PROXY="#,
        );
        let more = "EnvironmentFiles=/etc/b.env (ignore_errors=no)\n";
        let unit = Unit::parse(&format!("{text}{more}"), "").unwrap();
        let files = ["/etc/evenkeel/agent.env", "/etc/b.env"].map(PathBuf::from);
        assert_eq!(unit.environment_files(), files);
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let of_files = pairs(&[("HTTPS_PROXY", "http://proxy:1"), ("DOCKER_HOST", "tcp://b:1")]);
        let found = unit.unset(of_files, |name| name == "HOME");
        let expected = pairs(&[
            ("DOCKER_HOST", "tcp://b:1"),
            ("HTTPS_PROXY", "http://proxy:1"),
            ("NAME", "a \"b\""),
            ("NO_PROXY", ""),
            ("ONE", "it's $5"),
        ]);
        assert_eq!(found, expected);
        assert_eq!(unit.unset(BTreeMap::new(), |_| true), BTreeMap::new());
    }

    #[test]
    fn every_fault_of_the_unit_is_reported_with_a_remedy() {
        let changed = |from: &str, to: &str| GOOD.replace(from, to);
        for (text, severity, remedy) in [
            (
                changed("ActiveState=active\nExecMainStatus=0", "ActiveState=failed\nExecMainStatus=78"),
                Severity::Error,
                "correct the configuration",
            ),
            (
                changed("ActiveState=active\nExecMainStatus=0", "ActiveState=failed\nExecMainStatus=1"),
                Severity::Error,
                "journalctl",
            ),
            (changed("=enabled", "=disabled"), Severity::Warning, "systemctl enable"),
            (changed("Reload=no", "Reload=yes"), Severity::Warning, "daemon-reload"),
            (
                changed("--config /etc/evenkeel/config.json", "--config /srv/c.json"),
                Severity::Warning,
                "doctor --config /srv/c.json",
            ),
            (
                changed("LogsDirectory=evenkeel", "LogsDirectory="),
                Severity::Error,
                "ReadWritePaths=/var/log/evenkeel",
            ),
        ] {
            let found = findings(&text, |_| ());
            assert_eq!(found.len(), 1, "{found:#?}");
            assert_eq!(found[0].severity, severity);
            assert!(found[0].remedy.contains(remedy), "{found:#?}");
        }
        let private = |facts: &mut Facts<'_>| facts.private.push("/home/ann/compose.yml".into());
        assert!(findings(GOOD, private)[0].remedy.contains("read-homes.conf"));
        assert_eq!(findings(&changed("BoundingSet=", "BoundingSet=cap_dac_read_search"), private), []);
        let tag = |needs: &'static [&'static str]| {
            move |facts: &mut Facts<'_>| {
                facts.writes.insert(written(
                    "/opt/shop/.env",
                    "/srv/shop",
                    "newer tags are not deployed",
                    needs,
                ));
            }
        };
        let found = findings(GOOD, tag(&[]));
        assert_eq!((found.len(), found[0].why.as_str()), (1, "newer tags are not deployed"));
        assert!(found[0].remedy.ends_with("ReadWritePaths=/srv/shop"), "{found:#?}");
        let writable = changed("-/root/.gnupg", "-/root/.gnupg /srv/shop");
        assert_eq!(findings(&writable, tag(&[])), []);
        let needs = &["cap_dac_override", "cap_chown", "cap_fowner"];
        for (given, needs, foreign, lacking) in [
            ("", &needs[..], "/srv/shop", "CAP_DAC_OVERRIDE CAP_CHOWN CAP_FOWNER"),
            ("cap_chown cap_fowner", needs, "/srv/shop", "CAP_DAC_OVERRIDE"),
            ("cap_dac_override", needs, "/opt/shop/.env", "CAP_CHOWN CAP_FOWNER"),
            ("cap_fowner", &needs[1..], "/opt/shop/.env", "CAP_CHOWN"),
        ] {
            let text = writable.replace("BoundingSet=", &format!("BoundingSet={given}"));
            let found = findings(&text, tag(needs));
            assert_eq!((found.len(), found[0].why.as_str()), (1, "newer tags are not deployed"));
            let what = format!("{foreign} belongs to another user or group, and it lacks {lacking}");
            assert_eq!(found[0].what, what);
            assert!(found[0].remedy.contains(&format!("CapabilityBoundingSet={lacking}; ")), "{found:#?}");
            assert_eq!(findings(&text.replace("User=", "User=ada"), tag(needs)), [], "another user");
        }
        let given = writable.replace("BoundingSet=", &format!("BoundingSet={}", needs.join(" ")));
        assert_eq!(findings(&given, tag(needs)), []);
    }

    #[test]
    fn a_variable_that_the_unit_does_not_give_is_an_error() {
        for files in ["", "LoadCredentialEncrypted=OTHER_TOKEN:/x\n"] {
            let found = findings_with(files, GOOD, |_| ());
            let [finding] = &found[..] else { panic!("{found:#?}") };
            assert_eq!(finding.severity, Severity::Error);
            assert!(finding.what.contains("uses WARDEN_TOKEN") && finding.remedy.contains("agent.env"));
        }
        let variable = GOOD.replace("HOME=/root", "HOME=/root WARDEN_TOKEN=x");
        assert_eq!(findings_with("", &variable, |_| ()), []);
        let of_file = |facts: &mut Facts<'_>| facts.given.extend(["WARDEN_TOKEN".to_owned()]);
        assert_eq!(findings_with("", GOOD, of_file), []);
        for files in [
            "LoadCredentialEncrypted=WARDEN_TOKEN:/etc/credstore.encrypted/t\n",
            "SetCredentialEncrypted=WARDEN_TOKEN: k6iU\n",
            "SetCredential=WARDEN_TOKEN:x\n",
            "ImportCredential=WARDEN_*\n",
        ] {
            assert_eq!(findings_with(files, GOOD, |_| ()), [], "{files}");
        }
    }

    #[test]
    fn the_capabilities_that_the_engine_needs_are_named_with_a_drop_in() {
        type Change = fn(&mut Facts<'_>);
        let cases: [(&str, Change); 2] = [
            ("CAP_DAC_OVERRIDE", |facts| facts.socket = Some("/run/user/1000/docker.sock".into())),
            ("CAP_SYS_ADMIN", |facts| facts.runs_podman_compose = true),
        ];
        for (capability, change) in cases {
            let found = findings(GOOD, change);
            assert_eq!((found.len(), found[0].severity), (1, Severity::Error), "{found:#?}");
            assert!(found[0].remedy.ends_with(&format!("[Service] CapabilityBoundingSet={capability}")));
            let given = GOOD.replace("BoundingSet=", &format!("BoundingSet={}", capability.to_lowercase()));
            assert_eq!(findings(&given, change), []);
            assert_eq!(findings(&GOOD.replace("User=", "User=ada"), change), [], "another user");
        }
    }

    #[test]
    fn root_needs_capabilities_to_replace_files_of_others_only() {
        let owner = |uid, gid, mode| Owner { uid, gid, mode };
        for (folder, expected) in [
            (owner(0, 0, 0o40755), None),
            (owner(0, 1000, 0o40755), None),
            (owner(1000, 1000, 0o40755), Some(CREATE_ANYWHERE)),
            (owner(1000, 0, 0o40755), Some(CREATE_ANYWHERE)),
            (owner(1000, 0, 0o40775), None),
            (owner(1000, 1000, 0o40777), None),
        ] {
            assert_eq!(folder.to_create_in(), expected, "{folder:?}");
        }
        for (file, expected) in [
            (owner(0, 0, 0o600), &[][..]),
            (owner(0, 1000, 0o640), &["cap_chown"]),
            (owner(1000, 1000, 0o600), &["cap_chown", "cap_fowner"]),
        ] {
            assert_eq!(file.to_give_away().collect::<Vec<_>>(), expected, "{file:?}");
        }
    }

    #[test]
    fn a_tag_is_written_in_the_folder_behind_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::create_dir(folder.join("real")).unwrap();
        std::fs::write(folder.join("real/.env"), "TAG=1").unwrap();
        std::os::unix::fs::symlink("real/.env", folder.join("link")).unwrap();
        let written = Written::tag(&folder.join("link")).unwrap();
        assert_eq!((written.path, written.folder), (folder.join("link"), folder.join("real")));
        assert_eq!(Written::tag(&folder.join("none")), None);
    }

    #[test]
    fn readable_and_missing_files_are_not_private() {
        assert!(!is_private(Path::new("/etc/passwd")));
        assert!(!is_private(Path::new("/nonexistent")));
    }
}
