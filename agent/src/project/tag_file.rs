//! The line of the env file that sets a tag (`tag_variable`): read by a check, written by a deployment.

use std::path::Path;

use sha2::{Digest as _, Sha256};

use crate::model::env_file::{TagSetting, find_tag};
use crate::ports::EnvFiles;
use crate::service::observation::TagInForce;
use crate::service::rollout::tag::LineChange;

/// Result of writing a tag.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// The line has the wanted tag.
    Done,
    /// The line was changed by someone else: it is neither the old nor the new one.
    Conflict,
}

/// Reads the tag that `variable` is set to. Error messages are stable and contain no values.
pub(super) async fn read(files: &dyn EnvFiles, path: &Path, variable: &str) -> Result<TagInForce, String> {
    let (text, setting) = find(files, path, variable).await?;
    Ok(TagInForce { setting, file_hash: hash(&text) })
}

/// Writes `tag` into the line, or restores the old line. The operation is idempotent.
pub(super) async fn write(
    files: &dyn EnvFiles,
    line: &LineChange,
    variable: &str,
    tag: &str,
    back: bool,
) -> Result<Written, String> {
    let (text, setting) = find(files, &line.path, variable).await?;
    let (from, to) = if back { (&line.new, &line.old) } else { (&line.old, &line.new) };
    if setting.line == *to {
        return Ok(Written::Done);
    }
    if setting.line != *from {
        return Ok(Written::Conflict);
    }
    let text = setting.with(&text, tag);
    let is_changed = back && hash(&text) != line.file_hash;
    files.replace(&line.path, text).await?;
    if is_changed {
        tracing::info!(env_file = %line.path.display(), "other lines were changed meanwhile and are kept");
    }
    Ok(Written::Done)
}

async fn find(files: &dyn EnvFiles, path: &Path, variable: &str) -> Result<(String, TagSetting), String> {
    let text = files.read(path).await?;
    let setting = find_tag(&text, variable).map_err(|why| format!("env_file {}: {why}", path.display()))?;
    Ok((text, setting))
}

fn hash(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

#[cfg(test)]
mod tests {

    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::*;

    const BEFORE: &str = "# tags\r\nexport WEB_TAG='1.27.0' # ours\r\nPASSWORD=x";

    /// A single file.
    struct Memory(Mutex<String>);

    #[async_trait]
    impl EnvFiles for Memory {
        async fn read(&self, _: &Path) -> Result<String, String> {
            Ok(self.text())
        }

        async fn replace(&self, _: &Path, text: String) -> Result<(), String> {
            *self.0.lock() = text;
            Ok(())
        }
    }

    impl Memory {
        fn new() -> Self {
            Self(Mutex::new(BEFORE.to_owned()))
        }

        fn text(&self) -> String {
            self.0.lock().clone()
        }

        async fn line(&self) -> LineChange {
            let TagInForce { setting, file_hash } =
                read(self, Path::new("/shop.env"), "WEB_TAG").await.unwrap();
            let new = setting.line_with("1.27.4");
            LineChange { path: "/shop.env".into(), old: setting.line, new, file_hash }
        }

        async fn write(&self, line: &LineChange, back: bool) -> Result<Written, String> {
            write(self, line, "WEB_TAG", if back { "1.27.0" } else { "1.27.4" }, back).await
        }
    }

    #[tokio::test]
    async fn the_tag_is_written_and_put_back_byte_for_byte() {
        let file = Memory::new();
        let line = file.line().await;
        for _ in 0..2 {
            assert_eq!(file.write(&line, false).await, Ok(Written::Done));
            assert_eq!(file.text(), BEFORE.replace("1.27.0", "1.27.4"));
        }
        for _ in 0..2 {
            assert_eq!(file.write(&line, true).await, Ok(Written::Done));
            assert_eq!(file.text(), BEFORE);
        }
    }

    #[tokio::test]
    async fn a_manually_changed_line_is_left_alone_and_other_lines_are_kept() {
        let file = Memory::new();
        let line = file.line().await;
        let other = BEFORE.replace("PASSWORD=x", "PASSWORD=y\nMORE=1\n");
        file.0.lock().clone_from(&other);
        assert_eq!(file.write(&line, false).await, Ok(Written::Done));
        assert_eq!(file.text(), other.replace("1.27.0", "1.27.4"));
        for edit in ["1.27.2", "1.27.4' # mine", "1.27.4'#"] {
            let edited = BEFORE.replace("1.27.0", edit);
            file.0.lock().clone_from(&edited);
            for back in [false, true] {
                let written = file.write(&line, back).await;
                assert!(!matches!(written, Ok(Written::Done)), "{edit}: {written:?}");
                assert_eq!(file.text(), edited);
            }
        }
    }
}
