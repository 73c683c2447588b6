//! The hash over a project's compose files (spec 1.6).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use sha2::{Digest, Sha256};

use crate::config::is_set_by_engine;
use crate::model::env_file;
use crate::model::text::describe_io_error;
use crate::model::{Container, Project};

use super::references::{self, Variable};

/// Maximum size of a compose file.
const LARGEST: u64 = 16 * 1024 * 1024;

/// Maximum number of files that are followed from one another.
const MOST: usize = 500;
/// Marks a hash that covers the files that compose reads besides the configured ones.
const MARK: &str = "v2:";
/// Changes with the rules by which these files are found, so that hashes by other rules are not compared.
const RULES: &str =
    "links, variables, label files, presence, directories of includes, env files without own values";

/// The hash of everything that compose reads for a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hashed {
    /// Over the compose files, those that they name with `include` and `extends`, and env files. It begins with a mark of
    /// where compose looks for them, and of those that exist besides the configured ones.
    pub hash: String,
    /// Over the configured files only, as earlier versions computed it.
    pub configured_only: String,
    /// Files that compose reads if they exist, and that do not, or can't be read.
    absent: Vec<PathBuf>,
}

impl Hashed {
    /// Reports whether `known` can't be compared with this hash although no configured file may have been edited: an earlier
    /// version computed it, or a person has started the project from other places since, which applied the files.
    pub(super) fn is_upgrade_of(&self, known: &str) -> bool {
        let places =
            |hash: &str| hash.strip_prefix(MARK)?.split_once(':').map(|(places, _)| places.to_owned());
        match places(known) {
            None => known == self.configured_only,
            known => known != places(&self.hash),
        }
    }

    /// Returns a file that existed when `known` was computed, and is absent now. Compose may do without it, and leave the
    /// variables that it set empty.
    pub(super) fn missing_since(&self, known: &str) -> Option<&Path> {
        let present = known.strip_prefix(MARK)?.split(':').nth(1)?;
        let was_present = |path: &&PathBuf| {
            let mark = mark_of(path);
            present.split(',').any(|known| known == mark)
        };
        self.absent.iter().find(was_present).map(PathBuf::as_path)
    }
}

/// A short mark of a path.
fn mark_of(path: &Path) -> String {
    hex::encode(Sha256::digest(path.as_os_str().as_encoded_bytes()))[..12].to_owned()
}

/// Where work runs that blocks on the disk.
#[derive(Debug, Clone, Copy)]
pub enum Offload {
    /// On another thread: a disk may hang.
    Threads,
    /// Here: a simulation then gives the same run each time.
    Inline,
}

impl Offload {
    /// Runs it; `None` if it has panicked.
    pub(super) async fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        match self {
            Self::Threads => tokio::task::spawn_blocking(work).await.ok(),
            Self::Inline => Some(work()),
        }
    }
}

/// Computes the SHA-256 over all files in order. Each file is prefixed with its length, so that text moved from one file to
/// the next changes the hash. The error names the file. The values of `own_variables` in env files do not count: the agent
/// itself writes them.
pub(super) async fn hash(
    offload: Offload,
    project: &Project,
    own_variables: &BTreeSet<String>,
) -> Result<Hashed, String> {
    let (project, own_variables) = (project.clone(), own_variables.clone());
    let hashed = offload.run(move || {
        let mut hasher = Sha256::new();
        let mut contents = Vec::new();
        for path in &project.files {
            let content = read(path, Links::Refused)?;
            hasher.update(u64::try_from(content.len()).unwrap_or(u64::MAX).to_be_bytes());
            hasher.update(&content);
            contents.push((path.clone(), content));
        }
        let configured_only = hex::encode(hasher.clone().finalize());
        let (mut present, mut absent) = (Vec::new(), Vec::new());
        for (path, content) in others(&project, contents, &own_variables) {
            let name = path.as_os_str().as_encoded_bytes();
            for part in [name, content.as_deref().unwrap_or(b"absent")] {
                hasher.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
                hasher.update(part);
            }
            match content {
                Some(_) => present.push(mark_of(&path)),
                None => absent.push(path),
            }
        }
        let places = (&project.files, &project.folder, &project.env_files, &project.env_file);
        let places = hex::encode(Sha256::digest(format!("{:?}", (RULES, places, &own_variables))));
        let (present, content) = (present.join(","), hex::encode(hasher.finalize()));
        let hash = format!("{MARK}{}:{present}:{content}", &places[..16]);
        Ok(Hashed { hash, configured_only, absent })
    });
    hashed.await.unwrap_or_else(|| Err("the compose files can't be read".to_owned()))
}

/// Reads the files that compose reads besides these, in a stable order; `None` for one that is absent or unreadable. Env files
/// are without the values of `own_variables`.
fn others(
    project: &Project,
    files: Vec<(PathBuf, Vec<u8>)>,
    own_variables: &BTreeSet<String>,
) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let first = project.files.first().and_then(|file| file.parent());
    let folder = project.folder.as_deref().or(first).unwrap_or(Path::new("/")).to_owned();
    let mut found: BTreeMap<PathBuf, Option<Vec<u8>>> = BTreeMap::new();
    // Files that were named take its place.
    let mut of_variables = if project.env_files.is_empty() { vec![folder.join(".env")] } else { Vec::new() };
    of_variables.extend(project.env_files.iter().chain(&project.env_file).cloned());
    let main = files.into_iter().map(|(path, content)| (path, content, folder.clone()));
    // With the project directory that each is read with.
    let mut unread: Vec<(PathBuf, Vec<u8>, PathBuf)> = main.collect();
    let surroundings = surroundings(project, &folder);
    // Compose inherits the agent's environment, and prefers it to the files. It runs in the project directory.
    let value = |name: &str| match std::env::var(name) {
        _ if name == "PWD" => Variable::Set(folder.display().to_string()),
        Ok(value) if !is_set_by_engine(name, OsStr::new(&value)) => Variable::Set(value),
        _ => surroundings.get(name).cloned().unwrap_or(Variable::Unset),
    };
    while let Some((path, content, own_folder)) = unread.pop() {
        let named = references::of(&content, &value);
        let near = path.parent().unwrap_or(Path::new("/"));
        // Relative paths refer to a project directory or to the file's own, depending on where they are written.
        let places = |name: &str| [folder.join(name), own_folder.join(name), near.join(name)];
        of_variables.extend(named.variables.iter().flat_map(|name| places(name)));
        for file in &named.compose {
            let of_file = own_folder.join(file.folder.as_deref().unwrap_or_default());
            for path in places(&file.path) {
                if project.files.contains(&path) || found.contains_key(&path) || found.len() >= MOST {
                    continue;
                }
                let content = read(&path, Links::Followed).ok();
                unread.extend(content.clone().map(|content| (path.clone(), content, of_file.clone())));
                found.insert(path, content);
            }
        }
    }
    for path in of_variables {
        if !found.contains_key(&path) && found.len() < MOST {
            let content = read(&path, Links::Followed).ok();
            found.insert(path, content.map(|content| without_values(content, own_variables)));
        }
    }
    found
}

/// Removes the values of these variables from an env file, whatever the path it was read by.
fn without_values(content: Vec<u8>, variables: &BTreeSet<String>) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(&content) else { return content };
    let (mut rest, mut from) = (Vec::with_capacity(content.len()), 0);
    for setting in env_file::settings(text).flatten().filter(|setting| variables.contains(setting.name)) {
        rest.extend_from_slice(&content[from..setting.at]);
        from = setting.at + setting.raw.len();
    }
    rest.extend_from_slice(&content[from..]);
    rest
}

/// Returns the variables of the env files that compose takes values from.
fn surroundings(project: &Project, folder: &Path) -> BTreeMap<String, Variable> {
    let default = [folder.join(".env")];
    let of_project = if project.env_files.is_empty() { &default[..] } else { &project.env_files };
    let mut all = BTreeMap::new();
    for path in of_project.iter().chain(&project.env_file) {
        let text = read(path, Links::Followed).ok().and_then(|content| String::from_utf8(content).ok());
        for setting in env_file::settings(&text.unwrap_or_default()).flatten() {
            let is_plain = setting.quote == Some('\'') || !setting.raw.contains('$');
            let is_plain = is_plain && !setting.raw.contains('\\');
            let value = if is_plain { Variable::Set(setting.raw.to_owned()) } else { Variable::Unknown };
            all.insert(setting.name.to_owned(), value);
        }
    }
    all.extend(project.set.iter().map(|(name, value)| (name.clone(), Variable::Set(value.clone()))));
    all
}

/// A set of files that a project was started with and that contains more than the configured files.
#[derive(Debug, PartialEq)]
pub(super) struct Superset {
    /// The configured files, under their configured names, and the other files that still exist.
    pub files: Vec<PathBuf>,
    /// The files that are not configured.
    pub extra: Vec<PathBuf>,
}

/// Returns the sets of files that contain more than the configured ones. A set without any configured file belongs to
/// another project, or to this one before it moved. Relative paths are ignored, because their base directory is unknown.
pub(super) async fn supersets(
    offload: Offload,
    mut sets: BTreeSet<Vec<PathBuf>>,
    configured: &[PathBuf],
) -> Vec<Superset> {
    sets.retain(|set| set.iter().any(|file| !configured.contains(file)));
    if sets.is_empty() {
        return Vec::new();
    }
    let configured: Vec<PathBuf> = configured.to_vec();
    let inspected = offload.run(move || {
        let known: Vec<_> = configured.iter().map(|file| (identity(file), file)).collect();
        // Returns the configured name of a file, even if the file is missing.
        let named = |file: &PathBuf| {
            let id = identity(file);
            let is_it = |(known, name): &&(_, &PathBuf)| *name == file || (id.is_some() && *known == id);
            known.iter().find(is_it).map(|(_, name)| (*name).clone())
        };
        let superset = |set: Vec<PathBuf>| {
            let (mut files, mut extra) = (Vec::new(), Vec::new());
            for file in set {
                if let Some(name) = named(&file) {
                    files.push(name);
                } else if file.is_absolute() && identity(&file).is_some() {
                    files.push(file.clone());
                    extra.push(file);
                }
            }
            (!extra.is_empty() && extra.len() < files.len()).then_some(Superset { files, extra })
        };
        sets.into_iter().filter_map(superset).collect()
    });
    inspected.await.unwrap_or_default()
}

/// Corrects where these containers were started, if that folder no longer exists: the project was moved since, or compose was
/// run in a container that alone has the folder. Compose would make the folders of its bind mounts anew there. Nothing is known
/// if the folder of these configured files is missing, too, or if the agent does not see the files of the machine.
pub(crate) async fn follow_moved(offload: Offload, containers: &mut [Container], configured: &[PathBuf]) {
    let Some(now) = configured.first().and_then(|file| file.parent()).map(Path::to_owned) else { return };
    let folders: BTreeSet<PathBuf> =
        containers.iter().filter_map(|container| container.origin.folder.clone()).collect();
    let exists = now.clone();
    let gone = offload.run(move || {
        let mut gone = folders;
        gone.retain(|folder| {
            exists.is_dir() && folder.is_absolute() && matches!(folder.try_exists(), Ok(false))
        });
        gone
    });
    let gone = gone.await.unwrap_or_default();
    for origin in containers.iter_mut().map(|container| &mut container.origin) {
        if let Some(folder) = origin.folder.clone().filter(|folder| gone.contains(folder)) {
            origin.env_files.retain(|file| !file.starts_with(&folder));
            origin.folder = Some(now.clone());
        }
    }
}

/// Returns device and inode of a regular file, which are the same for all paths to it.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let about = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some((about.dev(), about.ino()))
}

/// What a path may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    /// No symbolic link: another user may have put it there (spec 2.9).
    Refused,
    /// A symbolic link too, which compose follows in what the compose files name.
    Followed,
}

/// Reads a regular file. Opening a pipe does not block.
fn read(path: &Path, links: Links) -> Result<Vec<u8>, String> {
    let fault = |what: String| format!("compose file {}: {what}", path.display());
    let mut flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match links {
        Links::Refused => flags |= OFlags::NOFOLLOW,
        // Opening a device can have effects.
        Links::Followed if path.metadata().is_ok_and(|about| !about.is_file()) => {
            return Err(fault("is not a regular file".to_owned()));
        }
        Links::Followed => {}
    }
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| fault(describe(&error.into())))?;
    let file = std::fs::File::from(file);
    let about = file.metadata().map_err(|error| fault(describe(&error)))?;
    if !about.is_file() {
        return Err(fault("is not a regular file".to_owned()));
    }
    let mut content = Vec::new();
    let read = file.take(LARGEST + 1).read_to_end(&mut content).map_err(|error| fault(describe(&error)))?;
    if read as u64 > LARGEST {
        return Err(fault(format!("is larger than {} MiB", LARGEST / 1024 / 1024)));
    }
    Ok(content)
}

fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            "is a symbolic link".to_owned()
        }
        _ => describe_io_error(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Origin;

    #[tokio::test]
    async fn text_that_moves_between_files_changes_the_hash() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&a, "a").unwrap();
        std::fs::write(&b, "bc").unwrap();
        let project = Project { files: vec![a.clone(), b.clone()], ..Project::default() };
        let before = hash(Offload::Inline, &project, &BTreeSet::new()).await.unwrap();
        std::fs::write(&a, "ab").unwrap();
        std::fs::write(&b, "c").unwrap();
        assert_ne!(hash(Offload::Inline, &project, &BTreeSet::new()).await.unwrap(), before);
    }

    #[tokio::test]
    async fn everything_that_compose_reads_counts() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        };
        let main = "include: [parts/db.yml, { path: other/app.yml, project_directory: apps }]\nservices:\n  web:\n    \
                    extends: { file: base.yml, service: web }\n    env_file: [{ path: web.env }]\n";
        let files = vec![write("compose.yml", main)];
        write("parts/db.yml", "services: { db: { image: db, env_file: db.env } }\n");
        write("other/app.yml", "services: { app: { image: app, env_file: app.env } }\n");
        write("base.yml", "services: { web: { image: web } }\n");
        let project = Project { files, env_files: vec![write("prod.env", "A=1\n")], ..Project::default() };
        let project = Project { env_file: Some(write("tags.env", "TAG=1\n")), ..project };
        let own = BTreeSet::from(["TAG".to_owned()]);
        let hashed = || async { hash(Offload::Inline, &project, &own).await.unwrap() };
        let mut before = hashed().await;
        assert_eq!(hashed().await, before);
        let of_includes =
            ["parts/db.yml", "parts/db.env", "parts/.env", "other/app.yml", "apps/app.env", "apps/.env"];
        for name in of_includes.into_iter().chain(["base.yml", "prod.env", "web.env", "tags.env"]) {
            let text = std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
            write(name, &format!("{text}# more\n"));
            let after = hashed().await;
            assert_ne!(after.hash, before.hash, "{name}");
            assert_eq!(after.configured_only, before.configured_only);
            before = after;
        }
        write("tags.env", "TAG=2\n# more\n");
        assert_eq!(hashed().await, before, "the agent writes this value itself");
        write(".env", "A=1\n");
        assert_eq!(hashed().await, before, "compose does not read it if other files are named");
        let of_default = Project { env_files: Vec::new(), ..project.clone() };
        let with_default = hash(Offload::Inline, &of_default, &BTreeSet::new()).await.unwrap();
        write(".env", "A=2\n");
        assert_ne!(
            hash(Offload::Inline, &of_default, &BTreeSet::new()).await.unwrap().hash,
            with_default.hash
        );
        assert!(before.is_upgrade_of(&before.configured_only) && !before.is_upgrade_of(&before.hash));
        let elsewhere = Project { folder: Some("/srv".into()), ..project.clone() };
        assert!(hash(Offload::Inline, &elsewhere, &own).await.unwrap().is_upgrade_of(&before.hash));
    }

    #[tokio::test]
    async fn of_an_env_file_all_counts_but_the_values_that_the_agent_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("compose.yml"), "services: {}\n").unwrap();
        std::fs::create_dir(path("real")).unwrap();
        std::os::unix::fs::symlink(path("real"), path("alias")).unwrap();
        // The labels of the containers have another path of the same file than the configuration.
        let project = Project {
            files: vec![path("compose.yml")],
            env_files: vec![path("real/.env")],
            env_file: Some(path("alias/.env")),
            ..Project::default()
        };
        let hash_with = async |text: &str, own: &[&str]| {
            std::fs::write(path("real/.env"), text).unwrap();
            let own: BTreeSet<String> = own.iter().map(|name| (*name).to_owned()).collect();
            hash(Offload::Inline, &project, &own).await.unwrap()
        };
        let before = hash_with("TAG=1\nA=1\n", &["TAG", "OTHER"]).await;
        for (text, is_same) in [
            ("TAG=1.27.4-alpine\nA=1\n", true),
            ("TAG=2\nA=2\n", false),
            ("TAG=\"1\"\nA=1\n", false),
            ("TAG=1\nA=1\nOTHER=1\n", false),
            ("A=1\n", false),
        ] {
            let after = hash_with(text, &["TAG", "OTHER"]).await;
            assert_eq!(after.hash == before.hash, is_same, "{text}");
        }
        // Which values the agent writes is a matter of the configuration, and no edit.
        assert!(hash_with("TAG=1\nA=1\n", &[]).await.is_upgrade_of(&before.hash));
    }

    #[tokio::test]
    async fn what_the_files_name_is_read_through_links_and_with_the_values_of_variables() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let main = "include: ['${PARTS:-parts}/db.yml']\nservices:\n  web:\n    env_file: '${EK_STAGE}.env'\n    \
                    label_file: web.labels\n";
        std::fs::create_dir(path("parts")).unwrap();
        std::fs::create_dir(path("elsewhere")).unwrap();
        std::fs::write(path("compose.yml"), main).unwrap();
        std::fs::write(path("elsewhere/shared.env"), "EK_STAGE=prod\n").unwrap();
        std::fs::write(path("elsewhere/db.yml"), "services: { db: { image: db } }\n").unwrap();
        std::os::unix::fs::symlink(path("elsewhere/shared.env"), path(".env")).unwrap();
        std::os::unix::fs::symlink("../elsewhere/db.yml", path("parts/db.yml")).unwrap();
        let project = Project { files: vec![path("compose.yml")], ..Project::default() };
        let hashed = || async { hash(Offload::Inline, &project, &BTreeSet::new()).await.unwrap().hash };
        let mut before = hashed().await;
        for name in ["elsewhere/shared.env", "elsewhere/db.yml", "prod.env", "web.labels"] {
            let text = std::fs::read_to_string(path(name)).unwrap_or_default();
            std::fs::write(path(name), format!("{text}# more\n")).unwrap();
            let after = hashed().await;
            assert_ne!(after, before, "{name}");
            before = after;
        }
        std::fs::remove_file(path("prod.env")).unwrap();
        let absent = hashed().await;
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        std::os::unix::fs::symlink(path("pipe"), path("prod.env")).unwrap();
        assert_eq!(hashed().await, absent, "a pipe behind a link is not read, and blocks nothing");
    }

    #[tokio::test]
    async fn a_project_whose_folder_is_gone_is_where_its_first_file_is() {
        let dir = tempfile::tempdir().unwrap();
        let (before, now) = (dir.path().join("before"), dir.path().join("now"));
        let started = Origin {
            folder: Some(before.clone()),
            env_files: vec![before.join(".env"), "/etc/prod.env".into()],
        };
        let followed = async || {
            let mut containers =
                [Container { origin: started.clone(), ..Container::running("web", "web:1") }];
            follow_moved(Offload::Inline, &mut containers, &[now.join("compose.yml")]).await;
            containers[0].origin.clone()
        };
        assert_eq!(followed().await, started, "the disk may not be mounted");
        std::fs::create_dir(&now).unwrap();
        let moved = Origin { folder: Some(now.clone()), env_files: vec!["/etc/prod.env".into()] };
        assert_eq!(followed().await, moved);
        std::fs::create_dir(&before).unwrap();
        assert_eq!(followed().await, started);
    }

    #[tokio::test]
    async fn a_file_that_was_there_before_is_missed_and_one_that_never_was_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let optional = |name: &str| format!("{{ path: {name}, required: false }}");
        let (web, never) = (optional("web.env"), optional("never.env"));
        let main = format!(
            "include: [parts/db.yml]\nservices: {{ web: {{ image: web, env_file: [{web}, {never}] }} }}\n"
        );
        std::fs::write(path("compose.yml"), main).unwrap();
        std::fs::create_dir(path("parts")).unwrap();
        std::fs::write(path("parts/db.yml"), "services: { db: { image: db } }\n").unwrap();
        let project = Project { files: vec![path("compose.yml")], ..Project::default() };
        let hashed = || async { hash(Offload::Inline, &project, &BTreeSet::new()).await.unwrap() };
        let write = |name: &str| std::fs::write(path(name), "A=1\n").unwrap();
        for name in [".env", "web.env", "parts/.env"] {
            write(name);
        }
        let before = hashed().await;
        assert_eq!(before.missing_since(&before.hash), None);
        for name in [".env", "web.env", "parts/.env"] {
            std::fs::remove_file(path(name)).unwrap();
            let after = hashed().await;
            assert_ne!(after.hash, before.hash, "{name}");
            assert_eq!(after.missing_since(&before.hash), Some(path(name).as_path()));
            assert_eq!(after.missing_since(&after.hash), None, "it was applied without the file");
            write(name);
        }
        assert_eq!(hashed().await, before);
        // The compose file no longer names it.
        std::fs::remove_file(path("web.env")).unwrap();
        std::fs::write(path("compose.yml"), "services: { web: { image: web } }\n").unwrap();
        assert_eq!(hashed().await.missing_since(&before.hash), None);
    }

    #[tokio::test]
    async fn a_hash_of_an_earlier_version_is_no_edit() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("compose.yml");
        std::fs::write(&file, "services: {}\n").unwrap();
        let project = Project { files: vec![file], ..Project::default() };
        let hashed = hash(Offload::Inline, &project, &BTreeSet::new()).await.unwrap();
        let earlier = format!("v2:0123456789abcdef:{}", "0".repeat(64));
        assert!(hashed.is_upgrade_of(&earlier));
        assert_eq!(hashed.missing_since(&earlier), None);
    }

    #[tokio::test]
    async fn a_superset_has_configured_files_and_others_under_any_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("real")).unwrap();
        std::os::unix::fs::symlink(path("real"), path("alias")).unwrap();
        for name in ["real/a.yml", "real/b.yml"] {
            std::fs::write(path(name), "").unwrap();
        }
        let of = |sets: &[&[&str]]| {
            let set = |names: &&[&str]| names.iter().map(|name| path(name)).collect();
            let sets: BTreeSet<Vec<PathBuf>> = sets.iter().map(set).collect();
            let configured = [path("real/a.yml")];
            async move { supersets(Offload::Inline, sets, &configured).await }
        };
        let same: [&[&str]; 5] =
            [&[], &["real/a.yml"], &["alias/a.yml"], &["real/a.yml", "gone.yml"], &["real/a.yml", "real"]];
        assert_eq!(of(&same).await, []);
        assert_eq!(of(&[&["real/b.yml"]]).await, [], "it has moved");
        let expected = || Superset {
            files: vec![path("real/a.yml"), path("real/b.yml")],
            extra: vec![path("real/b.yml")],
        };
        assert_eq!(of(&[&["alias/a.yml", "real/b.yml", "gone.yml"]]).await, [expected()]);
        let relative = BTreeSet::from([vec![path("real/a.yml"), "b.yml".into()]]);
        assert_eq!(supersets(Offload::Inline, relative, &[path("real/a.yml")]).await, []);
        // The file is missing while an editor rewrites it.
        std::fs::remove_file(path("real/a.yml")).unwrap();
        assert_eq!(of(&[&["real/a.yml", "real/b.yml"]]).await, [expected()]);
    }

    #[tokio::test]
    async fn links_pipes_and_missing_files_are_errors_and_nothing_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let hash = |file: PathBuf| async {
            hash(Offload::Inline, &Project { files: vec![file], ..Project::default() }, &BTreeSet::new())
                .await
                .unwrap_err()
        };
        assert!(hash(path("none")).await.contains("does not exist"));
        std::fs::write(path("file"), "x").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        assert!(hash(path("link")).await.contains("symbolic link"));
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert!(hash(path("pipe")).await.contains("regular file"));
        assert!(hash(dir.path().to_path_buf()).await.contains("regular file"));
    }
}
