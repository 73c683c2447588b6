//! Podman's own words for states, which the client knows no value for.

use bollard::errors::Error;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An answer about one container or several. One that the client does not understand is read once more, with the
/// states in Docker's words: between the end of a container and the cleanup podman calls it `stopped`.
pub(super) fn in_known_words<T: DeserializeOwned>(answer: Result<T, Error>) -> Result<T, Error> {
    let Err(Error::JsonDataError { contents, .. }) = &answer else { return answer };
    let Ok(mut value) = serde_json::from_str(contents) else { return answer };
    if let Value::Array(listed) = &mut value {
        // The state itself comes from the inspection; a listing's is not used.
        for container in listed.iter_mut().filter_map(Value::as_object_mut) {
            container.remove("State");
        }
    } else if let Some(Value::String(word)) = value.pointer_mut("/State/Status") {
        match word.as_str() {
            "configured" | "initialized" => "created".clone_into(word),
            "stopped" => "exited".clone_into(word),
            _ => {}
        }
    }
    // Through the reader that the client uses: another one would double the code of its largest types.
    serde_json::from_slice(value.to_string().as_bytes()).or(answer)
}

#[cfg(test)]
mod tests {
    use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum, ContainerSummary};

    use super::*;

    /// As the client reads an answer.
    fn read<T: DeserializeOwned>(contents: &str) -> Result<T, Error> {
        let answer = serde_json::from_str(contents).map_err(|error| Error::JsonDataError {
            message: error.to_string(),
            contents: contents.to_owned(),
            column: error.column(),
        });
        in_known_words(answer)
    }

    /// The word that an inspection's state is read as, next to what podman 4.3.1 says around it.
    fn inspected(word: &str) -> Result<Option<ContainerStateStatusEnum>, Error> {
        let answer = format!(
            r#"{{"Id":"3943e9c0d743","State":{{"Status":"{word}","Running":false,"Paused":false,"Restarting":false,
            "OOMKilled":false,"Dead":false,"Pid":0,"ExitCode":7,"Error":"","StartedAt":"2026-11-21T18:59:48.366039238Z",
            "FinishedAt":"2026-11-21T18:59:48.382075036Z","Health":{{"Status":"","FailingStreak":0,"Log":null}}}},
            "Image":"sha256:70a67e","Name":"/loop-web-1","RestartCount":392}}"#
        );
        read::<ContainerInspectResponse>(&answer).map(|seen| seen.state.and_then(|state| state.status))
    }

    #[test]
    fn podmans_words_for_a_state_are_understood() {
        assert_eq!(inspected("stopped").unwrap(), Some(ContainerStateStatusEnum::EXITED));
        assert_eq!(inspected("initialized").unwrap(), Some(ContainerStateStatusEnum::CREATED));
        assert_eq!(inspected("stopping").unwrap(), Some(ContainerStateStatusEnum::STOPPING));
        // A container about which nothing is known must not look like a stopped one.
        let error = inspected("frobnicated").unwrap_err().to_string();
        assert!(error.contains("unknown variant `frobnicated`"), "{error}");
    }

    #[test]
    fn a_listing_is_read_whatever_the_states_in_it_are_called() {
        let listing = r#"[{"Id":"a","Names":["/a"],"State":"stopped","Status":"Exited (7) Less than a second ago"},
            {"Id":"b","State":"frobnicated","Status":"?"},{"Id":"c","State":"running"}]"#;
        let listed: Vec<ContainerSummary> = read(listing).unwrap();
        assert_eq!(listed[0].status.as_deref(), Some("Exited (7) Less than a second ago"));
        assert_eq!(listed.iter().filter_map(|one| one.id.as_deref()).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn an_answer_that_is_wrong_in_another_way_keeps_its_first_error() {
        let error = read::<Vec<ContainerSummary>>(r#"[{"Id":5,"State":"stopped"}]"#).unwrap_err().to_string();
        assert!(error.contains("invalid type: integer `5`"), "{error}");
        assert!(read::<Vec<ContainerSummary>>("<html>").is_err());
    }
}
