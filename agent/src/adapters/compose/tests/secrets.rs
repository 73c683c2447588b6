//! What may be a password is in no error and no output.

use super::*;

#[tokio::test]
async fn a_value_that_compose_can_not_use_is_in_no_error() {
    let advice = "You may need to escape any $ with another $.";
    let format = "invalid interpolation format for services.db.environment.X";
    let hidden = "(not shown, since it may be a password)";
    let fault = format!("{format}. {advice}");
    let required = "required variable PASSWORD is missing a value: set it";
    let table = [
        (format!("{format}.\n{advice}\npa$5word"), fault.clone()),
        (format!("{format}.\n{advice}\none\n\npa$5word\nthree"), fault.clone()),
        (format!("{format}: \"pa$5word\". {advice}"), fault.clone()),
        (format!("{format}.\n{advice}\n{required}"), required.to_owned()),
        (
            "error while interpolating services.db.image: Invalid template: \"pa$5word\"".to_owned(),
            format!("error while interpolating services.db.image: Invalid template: {hidden}"),
        ),
        (
            "failed to read .env: line 2: unexpected character \"$\" in variable name \"pa$5word=\\\"x\""
                .to_owned(),
            format!("failed to read .env: line 2: unexpected character \"$\" in variable name {hidden}"),
        ),
        (
            "unexpected character \"$\" in variable name near \"pa$5word\\nB=1\"".to_owned(),
            format!("unexpected character \"$\" in variable name {hidden}"),
        ),
        ("failed at .env near \"pa$5word\"".to_owned(), format!("failed at .env near {hidden}")),
        (
            "line 3: unterminated quoted value \"pa$5word".to_owned(),
            format!("line 3: unterminated quoted value {hidden}"),
        ),
    ];
    for (printed, cause) in table {
        let stage = Stage::new(&format!("cat >&2 <<'END'\nlevel=warning\n{printed}\nEND\nexit 15"));
        let project = stage.project();
        let up = scripted().up(&project, &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
        assert_eq!(up.cause, cause);
        assert!(up.output.starts_with("level=warning\n") && up.output.ends_with(&cause), "{}", up.output);
        assert!(!up.output.contains("5word"), "{}", up.output);
        for error in [
            scripted().validate(&project).await.unwrap_err(),
            scripted().model(&project).await.unwrap_err(),
            scripted().hashes(&project).await.err().unwrap(),
        ] {
            assert_eq!(error, up);
        }
    }
}

#[tokio::test]
async fn of_an_error_whose_beginning_is_not_kept_nothing_is_shown() {
    let advice = "You may need to escape any $ with another $.";
    let format = "invalid interpolation format for services.db.environment.X";
    for length in [9_000, 100_000] {
        let value = "hunter2\n".repeat(length / 8);
        let line = "hunter2".repeat(length / 7);
        for printed in [
            format!("{format}.\n{advice}\n{value}"),
            format!("{format}: \"{line}\". {advice}"),
            format!("{format}.\n{advice}\n{line}"),
            format!("line 3: unterminated quoted value \"{line}"),
        ] {
            let stage = Stage::new("cat printed >&2; exit 15");
            fs::write(stage.path("printed"), printed).unwrap();
            let error = scripted().validate(&stage.project()).await.unwrap_err();
            assert_eq!((error.cause.as_str(), error.output.as_str()), (TOO_LONG, TOO_LONG));
            assert!(!error.was_killed);
        }
    }
    // The value is told from the rest by what is before it.
    let stage = Stage::new("cat printed >&2; exit 15");
    let warnings = "level=warning\n".repeat(1000);
    fs::write(stage.path("printed"), format!("{warnings}{format}.\n{advice}\nhunter2")).unwrap();
    let error = scripted().validate(&stage.project()).await.unwrap_err();
    assert_eq!(error.cause, format!("{format}. {advice}"));
    assert!(!error.output.contains("hunter2"), "{}", error.output);
}

#[tokio::test]
async fn the_rest_of_a_password_is_a_variable_that_is_not_set_but_in_no_output() {
    let warnings = r#"cat >&2 <<'END'
time="2024-05-01T10:00:00Z" level=warning msg="The \"hunter2\" variable is not set. Defaulting to a blank string."
time="2024-05-01T10:00:00Z" level=warning msg="The \"TAG\" variable is not set. Defaulting to a blank string."
END
"#;
    let stage = Stage::new(warnings);
    let hashes = scripted().hashes(&stage.project()).await.unwrap();
    assert_eq!(hashes.unset, ["TAG", "hunter2"]);
    let output = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap();
    assert!(!output.contains("hunter2") && output.contains("TAG"), "{output}");
    assert!(output.starts_with("A $ in the compose files"), "{output}");
    let stage = Stage::new(&format!("{warnings}echo broken >&2; exit 1"));
    let error = scripted().up(&stage.project(), &UpMode::Changed, PullPolicy::Never).await.unwrap_err();
    assert_eq!(error.cause, "broken");
    assert!(!error.output.contains("hunter2") && error.output.contains("TAG"), "{}", error.output);
}

#[test]
fn only_composes_own_sentence_is_about_a_variable_that_is_not_set() {
    for line in [
        r#"time="2024-05-01T10:00:00Z" level=warning msg="The \"TAG_1\" variable is not set. Defaulting to a blank string.""#,
        r#"WARN[0000] The "TAG_1" variable is not set. Defaulting to a blank string."#,
        "The TAG_1 variable is not set. Defaulting to a blank string.",
    ] {
        assert_eq!(unset_variable(line), Some("TAG_1"), "{line}");
    }
    for line in [
        "Error response from daemon: this environment variable is not set",
        "The PATH_TO_DATA environment variable is not set",
        "The \"\" variable is not set",
    ] {
        assert_eq!(unset_variable(line), None, "{line}");
        assert_eq!(withheld(line), line);
    }
}
