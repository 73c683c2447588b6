//! The env file that sets the tag of a service: the agent writes the tag, operators edit the lines around it.

use std::path::Path;

use async_trait::async_trait;
use evenkeel_agent::model::Project;
use evenkeel_agent::model::image::{Reference, Repository};
use evenkeel_agent::ports::EnvFiles;

use super::compose::person;
use super::{Definition, FakeWorld, Inner};

/// The variable that holds the tag.
pub(crate) const VARIABLE: &str = "WEB_TAG";

/// The file, and what its content must be before and after the tag.
pub(super) struct EnvFile {
    text: String,
    before: String,
    after: String,
}

impl EnvFile {
    fn new(tag: &str) -> Self {
        let before = format!("# ours\r\nSECRET=\"a b\"\r\nexport {VARIABLE}='");
        let mut file = Self { text: String::new(), before, after: "' # the shop\r\nPORT=80".to_owned() };
        file.write(tag);
        file
    }

    fn write(&mut self, tag: &str) {
        self.text = format!("{}{tag}{}", self.before, self.after);
    }

    /// Returns the tag, or the whole text as an error if anything but the tag has changed.
    pub(super) fn tag(&self) -> Result<String, String> {
        let tag = self.text.strip_prefix(&self.before).and_then(|rest| rest.strip_suffix(&self.after));
        let tag = tag.filter(|tag| tag.chars().all(|c| c.is_ascii_digit() || c == '.'));
        tag.map(str::to_owned).ok_or_else(|| self.text.clone())
    }
}

/// There is one env file, whatever its path.
#[async_trait]
impl EnvFiles for FakeWorld {
    async fn read(&self, path: &Path) -> Result<String, String> {
        self.point().await;
        let inner = self.lock();
        let file =
            inner.env_file.as_ref().ok_or_else(|| format!("env_file {}: does not exist", path.display()))?;
        Ok(file.text.clone())
    }

    async fn replace(&self, _: &Path, text: String) -> Result<(), String> {
        self.point().await;
        if let Some(file) = &mut self.lock().env_file {
            file.text = text;
        }
        Ok(())
    }
}

/// Returns the tag of a version.
pub(super) fn tag_of_version(version: u32) -> String {
    format!("1.{version}.0")
}

/// Returns the version of a tag.
pub(super) fn version_of(tag: &str) -> Option<u32> {
    tag.strip_prefix("1.")?.strip_suffix(".0")?.parse().ok()
}

impl FakeWorld {
    /// Has the env file set the tag of this service.
    pub(crate) fn set_tag_in_env_file(&self, service: &str) {
        let mut inner = self.lock();
        let definition =
            inner.services.iter_mut().find(|definition| definition.name == service).expect("it exists");
        definition.has_variable = true;
        let file = EnvFile::new(definition.reference.tag.as_deref().expect("it has a tag"));
        inner.env_file = Some(file);
        inner.tag_is_known();
    }
}

impl Inner {
    /// Returns the tag that the env file sets.
    pub(super) fn tag_in_force(&self) -> Option<String> {
        self.env_file.as_ref()?.tag().ok()
    }

    /// Returns the services as compose reads them: for the agent's project, or without it for an operator at the shell.
    pub(super) fn definitions(&self, project: Option<&Project>) -> Vec<Definition> {
        let set = project.and_then(|project| project.set.get(VARIABLE).cloned());
        let tag = set.or_else(|| self.tag_in_force());
        let mut services = self.services.clone();
        for service in services.iter_mut().filter(|service| service.has_variable) {
            service.reference.tag = tag.clone().or(service.reference.tag.take());
        }
        if let Some(project) = project {
            defined(&mut services, project);
        }
        services
    }

    /// Returns the tags of a repository in the registry.
    pub(super) fn tags_of(&self, repository: &Repository) -> Vec<String> {
        let all = self.registry.keys().filter_map(|name| Reference::parse(name).ok());
        all.filter(|reference| reference.repository == *repository).filter_map(|r| r.tag).collect()
    }

    /// An operator edits other lines.
    pub(super) fn edit_env_file(&mut self) {
        let Some(file) = &mut self.env_file else { return };
        let Ok(tag) = file.tag() else { return };
        file.before.insert_str(0, "MORE=1\n");
        file.after.push_str("\nLAST=2");
        file.write(&tag);
    }
}

/// Offset of the versions that compose renders in other surroundings than a person's.
const ELSEWHERE: u64 = 1_000_000;

/// Replaces the definitions by those that compose renders for this project: from a recorded definition, or from the files,
/// which mean something else in other surroundings.
fn defined(services: &mut Vec<Definition>, project: &Project) {
    let Some(model) = &project.definition else {
        let folder = person().folder;
        // An env file of the configuration takes the place of a person's.
        let is_alike = project.folder == folder
            && (project.env_file.is_some() || project.env_files == person().env_files);
        services.iter_mut().filter(|_| !is_alike).for_each(|service| service.version += ELSEWHERE);
        return;
    };
    services.retain(|service| model.service(&service.name).is_some());
    for service in services {
        let Some(recorded) = model.service(&service.name) else { continue };
        let version = recorded.element().pointer("/labels/version").and_then(|version| version.as_str());
        service.version = version.and_then(|version| version.parse().ok()).unwrap_or(service.version);
        service.reference = recorded.image().unwrap_or_else(|| service.reference.clone());
    }
}
