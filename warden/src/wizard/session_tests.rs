//! Runs of the wizard as lines on a pipe: the user's input, and the resulting file.

use std::io::Cursor;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::super::prompt::Plain;
use super::*;

const TOKEN: &str = "0123456789abcdef-of-people";
const OLD: &str = r#"{"api": {"port": "8080", "token": "$WARDEN_TOKEN"}, "agents": [{"id": "a", "url": "http://a:9090", "token": "${A_TOKEN}", "note": 1}]}"#;

struct Played {
    end: Result<Outcome, PromptError>,
    said: String,
    folder: tempfile::TempDir,
}

impl Played {
    fn path(&self) -> PathBuf {
        self.folder.path().join("conf/warden.json")
    }

    fn file(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path()).unwrap()).unwrap()
    }
}

fn play(before: Option<&str>, lines: &[&str]) -> Played {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("conf/warden.json");
    if let Some(text) = before {
        fs::create_dir(folder.path().join("conf")).unwrap();
        fs::write(&path, text).unwrap();
    }
    let input: String = lines.iter().flat_map(|line| [*line, "\n"]).collect();
    let mut output = Vec::new();
    let env = |name: &str| (name == "WARDEN_TOKEN").then(|| TOKEN.to_owned());
    let draft = before.map_or_else(Draft::default, |text| Draft::parse(text).unwrap());
    let end = Session::new(&path, before.map(str::to_owned), draft, &env)
        .run(&mut Plain::new(Cursor::new(input), &mut output));
    Played { end, said: String::from_utf8(output).unwrap(), folder }
}

fn written(before: Option<&str>, lines: &[&str]) -> Played {
    let played = play(before, lines);
    assert!(matches!(played.end, Ok(Outcome::Written)), "{:?}\n{}", played.end, played.said);
    let mode = fs::metadata(played.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    played
}

#[test]
fn a_new_file_is_created_from_a_few_answers() {
    let played = written(
        None,
        &[
            "",
            "1",
            "https://warden.example/",
            "", // listen, generated token, address, state file
            "y",
            "web-1",
            "10.0.0.5:9090",
            "1", // an agent
            "",
            "web-2",
            "http://b:9090",
            "2",
            "WEB2_TOKEN", // another
            "n",
            "7",
        ],
    );
    let file = played.file();
    let api_token = file["api"]["token"].as_str().unwrap();
    let first = file["agents"][0]["token"].as_str().unwrap();
    assert_eq!(URL_SAFE_NO_PAD.decode(api_token).unwrap().len(), 32);
    assert_ne!(api_token, first);
    assert_eq!(file["api"]["port"], "8080");
    assert_eq!(file["api"]["state_path"], DEFAULT_STATE);
    assert_eq!(file["agents"][0]["url"], "http://10.0.0.5:9090");
    assert_eq!(file["agents"][1]["token"], "$WEB2_TOKEN");
    assert_eq!(played.said.matches(first).count(), 1, "shown once");
    assert_eq!(played.said.matches(api_token).count(), 1, "shown once");
    let block = format!(
        "  \"push\": {{\n    \"warden_url\": \"https://warden.example\",\n    \"token\": \"{first}\",\n    \"machine_id\": \"web-1\"\n  }}\n"
    );
    assert!(played.said.contains(&block), "{}", played.said);
    let env = |_: &str| Some("another-token-0123456789".to_owned());
    assert_eq!(Config::load(&played.path(), &env).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn an_agent_needs_no_address_and_none_is_the_default() {
    let lines = ["", "1", "http://w", "", "y", "web-1", "", "1", "y", "web-2", "None", "1", "n", "7"];
    let played = written(None, &lines);
    let file = played.file();
    for n in 0..2 {
        assert_eq!(file["agents"][n].get("url"), None, "{file:#}");
    }
    assert!(played.said.contains("web-1  (no address)"), "{}", played.said);
    // One that has an address keeps it by default, and loses it on request.
    let kept = written(Some(OLD), &["2", "1", "", "", "1", "7"]);
    assert_eq!(kept.file()["agents"][0]["url"], "http://a:9090");
    let removed = written(Some(OLD), &["2", "1", "", "none", "1", "7"]);
    assert_eq!(removed.file()["agents"][0].get("url"), None);
}

#[test]
fn the_token_is_never_part_of_a_link_and_the_last_words_start_the_warden() {
    let played = written(None, &["", "1", "http://w:8080", "", "n", "5"]);
    let token = played.file()["api"]["token"].as_str().unwrap().to_owned();
    assert!(!played.said.contains("token="), "{}", played.said);
    assert!(played.said.contains(&format!("\n  {token}\n")), "{}", played.said);
    let path = played.path();
    let last = played.said.split("was written.").nth(1).unwrap();
    assert!(
        last.contains(&format!("--config {}", path.display())) && last.contains("systemctl restart"),
        "{last}"
    );
}

#[test]
fn references_and_unknown_keys_stay_as_they_are() {
    let played = written(Some(OLD), &["4", "127.0.0.1:9000, [::1]:9000", "7"]);
    let file = played.file();
    assert_eq!(file["api"], json!({"address": ["127.0.0.1:9000", "[::1]:9000"], "token": "$WARDEN_TOKEN"}));
    assert_eq!(
        file["agents"][0],
        json!({"id": "a", "url": "http://a:9090", "token": "${A_TOKEN}", "note": 1})
    );
    assert!(played.said.contains("the token in $WARDEN_TOKEN\n"), "{}", played.said);
    assert!(played.said.contains("the token in ${A_TOKEN} (not set here"), "{}", played.said);
    assert!(!played.said.contains(TOKEN));
}

#[test]
fn agents_are_edited_and_removed() {
    let edited = written(Some(OLD), &["2", "1", "b", "", "1", "7"]);
    assert_eq!(
        edited.file()["agents"],
        json!([{"id": "b", "url": "http://a:9090", "token": "${A_TOKEN}", "note": 1}])
    );
    let removed = written(Some(OLD), &["3", "1", "y", "5"]);
    assert_eq!(removed.file()["agents"], json!([]));
    let kept = play(Some(OLD), &["3", "1", "", "8"]);
    assert_eq!(fs::read_to_string(kept.path()).unwrap(), OLD);
}

#[test]
fn a_secret_that_is_entered_is_not_shown_and_its_dollars_are_kept() {
    let played = written(Some(OLD), &["1", "c", "http://c:1", "3", "pa$$word-of-machine-c", "http://w", "7"]);
    assert_eq!(played.file()["agents"][1]["token"], "pa$$$$word-of-machine-c");
    assert!(!played.said.contains("word-of-machine-c"), "{}", played.said);
    assert!(played.said.contains("(the token that you entered)"));
    let config = Config::load(&played.path(), &|_| Some(TOKEN.to_owned())).unwrap();
    // Both variables have the same value here, which is a warning; the entered token is unchanged.
    assert!(config.warnings.iter().any(|warning| warning.contains("the same as api.token")));
    assert_eq!(config.agents[1].token.expose(), "pa$$word-of-machine-c");
    let referred = written(Some(OLD), &["1", "c", "http://c:1", "3", "$C_TOKEN", "http://w", "7"]);
    assert_eq!(referred.file()["agents"][1]["token"], "$C_TOKEN");
}

#[test]
fn wrong_answers_are_explained_and_asked_again() {
    let played = written(
        Some(OLD),
        &[
            "99",
            "x",
            "1", // the menu
            "a",
            "",
            "c", // a name that is taken, none, a good one
            "ftp://x",
            "http://c:1", // address
            "3",
            "",
            "2",
            "1X",
            "2",
            "WARDEN_TOKEN",
            "1", // token: empty, a bad name, one that is taken
            "nonsense",
            "http://w",
            "4",
            "70000",
            "host:80",
            "81",
            "6",
            "relative",
            "none",
            "7",
        ],
    );
    for said in [
        "Please answer with a number from 1 to 8.",
        "a is already taken.",
        "Please give a name",
        "Please give http://host:port or https://host:port, or a $NAME",
        "An empty token",
        "A name has letters",
        "This token is already in use",
        "Please give http://host:port or https://host.",
        "has no port; allowed",
        "has an invalid host; allowed",
        "Please give the absolute path",
    ] {
        assert!(played.said.contains(said), "{said} is not in: {}", played.said);
    }
    assert_eq!(played.file()["api"]["port"], "81");
}

#[test]
fn the_end_of_the_input_leaves_the_old_file_unchanged() {
    let lines = ["1", "c", "http://c:1", "1", "http://w", "7"];
    for count in 0..lines.len() {
        let played = play(Some(OLD), &lines[..count]);
        assert!(matches!(played.end, Err(PromptError::Interrupted)), "after {count}");
        assert_eq!(fs::read_to_string(played.path()).unwrap(), OLD, "after {count}");
    }
    let played = play(None, &["", "1"]);
    assert!(matches!(played.end, Err(PromptError::Interrupted)) && !played.path().exists());
}

#[test]
fn an_invalid_configuration_is_not_saved() {
    let broken = r#"{"api": {"port": "8080"}, "agents": []}"#;
    let played = play(Some(broken), &["5", "6"]);
    assert!(played.said.contains("This cannot be saved yet:"), "{}", played.said);
    assert!(played.said.contains("api.token: is missing"), "{}", played.said);
    assert_eq!(fs::read_to_string(played.path()).unwrap(), broken);
}

#[test]
fn quitting_without_saving_asks_only_when_something_was_changed() {
    let unchanged = play(Some(OLD), &["8"]);
    assert!(matches!(unchanged.end, Ok(Outcome::Unchanged)));
    let changed = play(Some(OLD), &["4", "9", "8", "n", "8", "y"]);
    assert!(matches!(changed.end, Ok(Outcome::Unchanged)), "{}", changed.said);
    assert_eq!(fs::read_to_string(changed.path()).unwrap(), OLD);
}

#[test]
fn a_login_in_an_address_is_not_shown() {
    assert_eq!(without_credentials("https://me:pw@host:1/x"), "https://(login not shown)@host:1/x");
    assert_eq!(without_credentials("http://host"), "http://host");
    assert_eq!(printable("a\u{1b}[31m"), "\"a\\u{1b}[31m\"");
}
