//! The flow of the wizard: it asks for the essentials of a new file one after the other, then shows a menu.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_common::config::expand::Env;
use evenkeel_common::config::{Findings, KeyPath, address, quote, source};
use evenkeel_common::file;
use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::json;

use super::draft::Draft;
use super::prompt::{Prompt, PromptError};
use crate::config::{Config, Configuration, DEFAULT_PORT, web_url};

const DEFAULT_STATE: &str = "/var/lib/evenkeel-warden";
/// Length of a generated token before encoding.
const TOKEN_BYTES: usize = 32;

/// How the wizard ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The file was written.
    Written,
    /// The file was deliberately left unchanged.
    Unchanged,
}

/// One run of the wizard.
pub(super) struct Session<'a> {
    path: &'a Path,
    /// Text of the file when it was read.
    before: Option<String>,
    draft: Draft,
    read: Draft,
    env: Env<'a>,
    /// URL under which agents reach this warden, once the user has been asked.
    warden_url: Option<String>,
}

/// A token and where it came from.
enum Token {
    Generated(String),
    Reference(String),
    Entered(String),
    Kept(String),
}

impl Token {
    /// The text for the file.
    fn text(&self) -> &str {
        match self {
            Self::Generated(text) | Self::Reference(text) | Self::Entered(text) | Self::Kept(text) => text,
        }
    }
}

impl<'a> Session<'a> {
    pub(super) fn new(path: &'a Path, before: Option<String>, draft: Draft, env: Env<'a>) -> Self {
        Self { path, before, read: draft.clone(), draft, env, warden_url: None }
    }

    pub(super) fn run(&mut self, prompt: &mut dyn Prompt) -> Result<Outcome, PromptError> {
        let shown = self.path.display();
        if self.before.is_none() {
            prompt.say(&format!("{shown} does not exist yet. A few questions will create it.\n"))?;
            self.begin(prompt)?;
        } else {
            prompt.say(&format!("{shown} contains:\n"))?;
        }
        loop {
            self.show(prompt)?;
            match self.menu(prompt) {
                // Esc in a question returns to the menu; in the menu it does nothing.
                Ok(None) | Err(PromptError::Cancelled) => {}
                Ok(Some(end)) => return Ok(end),
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Asks for the essentials of a new file. There is no menu to return to yet, so Esc ends the wizard.
    fn begin(&mut self, prompt: &mut dyn Prompt) -> Result<(), PromptError> {
        self.ask_listen(prompt)?;
        self.ask_api_token(prompt)?;
        self.ask_state(prompt)?;
        while prompt.confirm("Add an agent?", true)? {
            match self.add_agent(prompt) {
                Err(PromptError::Cancelled) => break,
                other => other?,
            }
        }
        Ok(())
    }

    fn menu(&mut self, prompt: &mut dyn Prompt) -> Result<Option<Outcome>, PromptError> {
        type Step<'a> = fn(&mut Session<'a>, &mut dyn Prompt) -> Result<(), PromptError>;
        let mut steps: Vec<(&str, Step<'a>)> = vec![("Add an agent", Self::add_agent)];
        if !self.draft.agents().is_empty() {
            steps.push(("Edit an agent", Self::edit_agent));
            steps.push(("Remove an agent", Self::remove_agent));
        }
        steps.push(("Change the listen address", Self::ask_listen));
        steps.push(("Change the token for users", Self::ask_api_token));
        steps.push(("Change the data folder", Self::ask_state));
        let mut choices: Vec<String> = steps.iter().map(|(name, _)| (*name).to_owned()).collect();
        choices.extend(["Save and quit".to_owned(), "Quit without saving".to_owned()]);
        let choice = prompt.choose("What next?", &choices)?;
        if let Some((_, step)) = steps.get(choice) {
            step(self, prompt)?;
            return Ok(None);
        }
        if choice == steps.len() {
            return self.save(prompt);
        }
        if self.draft != self.read && !prompt.confirm("Discard all changes?", false)? {
            return Ok(None);
        }
        prompt.say(&format!("{} was left unchanged.", self.path.display()))?;
        Ok(Some(Outcome::Unchanged))
    }

    /// Shows what the file would contain, without secrets.
    fn show(&self, prompt: &mut dyn Prompt) -> Result<(), PromptError> {
        let state = Some(self.draft.api("state_path")).filter(|path| !path.is_empty());
        let mut lines = vec![
            format!("  listens on    {}", self.listens()),
            format!("  users need    {}", self.describe_token(&self.draft.api("token"))),
            format!(
                "  state folder  {}",
                state.unwrap_or_else(|| "none: entries are lost on restart".to_owned())
            ),
        ];
        if self.draft.agents().is_empty() {
            lines.push("  agents        none".to_owned());
        }
        for index in 0..self.draft.agents().len() {
            let title = if index == 0 { "agents" } else { "" };
            let (id, url) = (self.draft.agent(index, "id"), self.draft.agent(index, "url"));
            let token = self.describe_token(&self.draft.agent(index, "token"));
            let url = if url.is_empty() { "(no address)".to_owned() } else { without_credentials(&url) };
            lines.push(format!("  {title:<13} {}  {url}  {token}", printable(&id)));
        }
        prompt.say(&format!("{}\n", lines.join("\n")))
    }

    fn listens(&self) -> String {
        let addresses = self.draft.addresses();
        if !addresses.is_empty() {
            return addresses.iter().map(|text| printable(text)).collect::<Vec<_>>().join(", ");
        }
        let port = Some(self.draft.api("port")).filter(|port| !port.is_empty());
        format!("port {} on all interfaces", port.unwrap_or_else(|| DEFAULT_PORT.to_string()))
    }

    fn describe_token(&self, token: &str) -> String {
        match reference(token) {
            _ if token.is_empty() => "no token yet".to_owned(),
            Some(name) if (self.env)(name).is_none() => {
                format!("the token in {token} (not set here; the warden will need it)")
            }
            Some(_) => format!("the token in {token}"),
            None => "a token (not shown)".to_owned(),
        }
    }

    fn ask_listen(&mut self, prompt: &mut dyn Prompt) -> Result<(), PromptError> {
        prompt.say(
            "The warden serves plain HTTP. Behind a proxy that adds TLS, listen on 127.0.0.1 only; a port alone \
             means all interfaces.",
        )?;
        let now = self.draft.addresses().join(", ");
        let port = self.draft.api("port");
        let default = match (now.is_empty(), port.is_empty()) {
            (false, _) => now,
            (true, false) => port,
            (true, true) => DEFAULT_PORT.to_string(),
        };
        loop {
            let answer = prompt.text("Port, or host:port (separate several with commas)", &default)?;
            if let Some(port) = address::port(&answer) {
                self.draft.set_api("address", json!(null));
                self.draft.set_api("port", json!(port.to_string()));
                return Ok(());
            }
            let texts: Vec<Option<String>> =
                answer.split(',').map(|text| Some(text.trim().to_owned())).collect();
            let mut findings = Findings::default();
            let good = address::check(&texts, &KeyPath::root(), &mut findings);
            let (faults, _) = findings.finish();
            if faults.is_empty() {
                let texts: Vec<&Option<String>> = good.iter().map(|(n, _)| &texts[*n]).collect();
                self.draft.set_api("port", json!(null));
                self.draft.set_api("address", json!(texts));
                return Ok(());
            }
            for fault in faults {
                prompt.say(&fault.message)?;
            }
        }
    }

    fn ask_api_token(&mut self, prompt: &mut dyn Prompt) -> Result<(), PromptError> {
        let now = self.draft.api("token");
        let token = self.ask_token(prompt, "The token that users need in the browser", &now, None)?;
        self.draft.set_api("token", json!(token.text()));
        if let Token::Generated(text) = &token {
            let url = self.ask_warden_url(prompt)?;
            // Not as a link: links end up in histories, logs and chats.
            prompt.say(&format!(
                "Save this token, it is not shown again:\n\n  {text}\n\nTo view the fleet, open {url} and enter it.\n"
            ))?;
        }
        Ok(())
    }

    fn ask_state(&mut self, prompt: &mut dyn Prompt) -> Result<(), PromptError> {
        let now = self.draft.api("state_path");
        let default = match (now.is_empty(), self.before.is_none()) {
            (true, true) => DEFAULT_STATE,
            (true, false) => "none",
            (false, _) => &now,
        };
        loop {
            let answer = prompt
                .text("Folder that keeps the entries across restarts (\"none\" for no folder)", default)?;
            if answer == "none" {
                self.draft.set_api("state_path", json!(null));
                return Ok(());
            }
            if Path::new(&answer).is_absolute() {
                self.draft.set_api("state_path", json!(answer));
                return Ok(());
            }
            prompt.say("Please give the absolute path of a folder, for example /var/lib/evenkeel-warden.")?;
        }
    }

    fn add_agent(&mut self, prompt: &mut dyn Prompt) -> Result<(), PromptError> {
        let index = self.draft.agents().len();
        self.ask_agent(prompt, index)
    }

    fn edit_agent(&mut self, prompt: &mut dyn Prompt) -> Result<(), PromptError> {
        let index = self.choose_agent(prompt, "Which agent do you want to edit?")?;
        self.ask_agent(prompt, index)
    }

    fn remove_agent(&mut self, prompt: &mut dyn Prompt) -> Result<(), PromptError> {
        let index = self.choose_agent(prompt, "Which agent do you want to remove?")?;
        let id = printable(&self.draft.agent(index, "id"));
        if prompt.confirm(&format!("Remove {id}? Its entries will be refused."), false)? {
            self.draft.remove_agent(index);
        }
        Ok(())
    }

    fn choose_agent(&mut self, prompt: &mut dyn Prompt, question: &str) -> Result<usize, PromptError> {
        let ids = (0..self.draft.agents().len()).map(|index| printable(&self.draft.agent(index, "id")));
        prompt.choose(question, &ids.collect::<Vec<_>>())
    }

    /// Asks for all settings of one agent. The draft changes only when every question has been answered.
    fn ask_agent(&mut self, prompt: &mut dyn Prompt, index: usize) -> Result<(), PromptError> {
        let id = self.ask_id(prompt, index)?;
        let url = self.ask_url(prompt, index)?;
        let now = self.draft.agent(index, "token");
        let token = self.ask_token(prompt, &format!("The token of {}", printable(&id)), &now, Some(index))?;
        let shown = match &token {
            Token::Generated(text) | Token::Reference(text) => Some(text.clone()),
            Token::Entered(_) => Some("(the token that you entered)".to_owned()),
            Token::Kept(_) => None,
        };
        let url_of_warden = match &shown {
            Some(_) => self.ask_warden_url(prompt)?,
            None => String::new(),
        };
        for (key, value) in [("id", id.as_str()), ("url", &url), ("token", token.text())] {
            self.draft.set_agent(index, key, value);
        }
        if let Some(shown) = shown {
            let once =
                if matches!(token, Token::Generated(_)) { " The token is not shown again." } else { "" };
            let block = format!(
                "  \"push\": {{\n    \"warden_url\": {},\n    \"token\": {},\n    \"machine_id\": {}\n  }}\n",
                json!(url_of_warden),
                json!(shown),
                json!(id)
            );
            prompt.say(&format!("Add this to the agent's configuration.{once}\n\n{block}"))?;
        }
        Ok(())
    }

    fn ask_id(&self, prompt: &mut dyn Prompt, index: usize) -> Result<String, PromptError> {
        let now = self.draft.agent(index, "id");
        loop {
            let id = prompt.text("Name of the machine", &now)?;
            let taken = (0..self.draft.agents().len())
                .any(|other| other != index && self.draft.agent(other, "id") == id);
            if taken {
                prompt.say(&format!("{} is already taken.", printable(&id)))?;
            } else if id.is_empty() || id.len() > 128 || id.chars().any(char::is_control) {
                prompt.say("Please give a name of at most 128 bytes without control characters.")?;
            } else {
                return Ok(id);
            }
        }
    }

    fn ask_url(&self, prompt: &mut dyn Prompt, index: usize) -> Result<String, PromptError> {
        let now = self.draft.agent(index, "url");
        let hidden = !now.is_empty() && without_credentials(&now) != now;
        let default = if hidden { String::new() } else { now.clone() };
        let hint = match (hidden, now.is_empty()) {
            (true, _) => "\"none\" for none, empty to keep it",
            (false, true) => "empty for none",
            (false, false) => "\"none\" for none",
        };
        loop {
            let question = format!("Address of its API, for example http://10.0.0.5:9090 ({hint})");
            let answer = prompt.text(&question, &default)?;
            // Without an address, the agent counts as online while it polls the warden.
            if answer.eq_ignore_ascii_case("none") {
                return Ok(String::new());
            }
            if answer.is_empty() {
                return Ok(now);
            }
            let url = if answer.contains("://") || answer.contains('$') {
                answer
            } else {
                format!("http://{answer}")
            };
            if url.contains('$') || web_url(&url).is_some() {
                return Ok(url);
            }
            prompt
                .say("Please give http://host:port or https://host:port, or a $NAME from the environment.")?;
        }
    }

    fn ask_token(
        &self,
        prompt: &mut dyn Prompt,
        what: &str,
        now: &str,
        index: Option<usize>,
    ) -> Result<Token, PromptError> {
        let mut choices = vec!["Generate one", "Take it from an environment variable", "Enter one"];
        if !now.is_empty() {
            choices.insert(0, "Keep it");
        }
        let names: Vec<String> = choices.iter().map(|choice| (*choice).to_owned()).collect();
        loop {
            let token = match choices[prompt.choose(what, &names)?] {
                "Keep it" => return Ok(Token::Kept(now.to_owned())),
                "Generate one" => return Ok(Token::Generated(generate()?)),
                "Enter one" => entered(prompt.secret("Token (not shown)")?),
                _ => {
                    let name = prompt.text("Name of the variable", "")?;
                    let name = name.trim_start_matches('$').trim_matches(['{', '}']);
                    let text = format!("${name}");
                    if reference(&text).is_none() {
                        prompt
                            .say("A name has letters, digits and \"_\", and does not start with a digit.")?;
                        continue;
                    }
                    Token::Reference(text)
                }
            };
            if token.text().is_empty() || token.text().chars().any(char::is_control) {
                prompt.say("An empty token, or one with control characters, is never accepted.")?;
            } else if self.has_token(token.text(), index) {
                prompt.say("This token is already in use; each needs its own.")?;
            } else {
                if token.text().len() < 16 && matches!(token, Token::Entered(_)) {
                    prompt.say(
                        "Note: such a short token can be guessed. Generate one with `openssl rand -hex 32`.",
                    )?;
                }
                return Ok(token);
            }
        }
    }

    /// Reports whether this token is `api.token` or belongs to an agent other than the one at `index`.
    fn has_token(&self, text: &str, index: Option<usize>) -> bool {
        let is_api_token = index.is_some() && self.draft.api("token") == text;
        let is_of_agent = (0..self.draft.agents().len())
            .any(|other| Some(other) != index && self.draft.agent(other, "token") == text);
        is_api_token || is_of_agent
    }

    /// Asks for the URL under which others reach the warden, once per run.
    fn ask_warden_url(&mut self, prompt: &mut dyn Prompt) -> Result<String, PromptError> {
        if let Some(url) = &self.warden_url {
            return Ok(url.clone());
        }
        let port = Some(self.draft.api("port")).filter(|port| !port.is_empty());
        let first = self.draft.addresses().first().and_then(|text| Some(text.rsplit_once(':')?.1.to_owned()));
        let port = port.or(first).unwrap_or_else(|| DEFAULT_PORT.to_string());
        let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let default = format!("http://{machine}:{port}");
        loop {
            let answer = prompt.text("Address under which others reach this warden", &default)?;
            let url = answer.trim_end_matches('/').to_owned();
            if web_url(&url).is_some() {
                self.warden_url = Some(url.clone());
                return Ok(url);
            }
            prompt.say("Please give http://host:port or https://host.")?;
        }
    }

    fn save(&mut self, prompt: &mut dyn Prompt) -> Result<Option<Outcome>, PromptError> {
        let text = self.draft.render();
        // A variable that is not set here may be set where the warden runs; assume a valid value.
        let env =
            |name: &str| (self.env)(name).or_else(|| Some(format!("http://{name}.not-set-here.invalid")));
        if let Err(faults) = Config::parse(&text, self.path, &env) {
            prompt.say(&format!("This cannot be saved yet:\n{faults}\n"))?;
            return Ok(None);
        }
        let now = source::read(self.path).ok();
        if now != self.before
            && !prompt.confirm("The file has been changed in the meantime. Overwrite it?", false)?
        {
            return Ok(None);
        }
        let folder = self.path.parent().map(Path::to_owned).filter(|folder| *folder != PathBuf::new());
        let written = folder
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| file::write_atomically(self.path, text.as_bytes()));
        match written {
            Ok(()) => {
                prompt.say(&format!("{} was written. {}", self.path.display(), super::start(self.path)))?;
                Ok(Some(Outcome::Written))
            }
            Err(error) => {
                prompt.say(&format!("{} cannot be written: {error}\n", self.path.display()))?;
                Ok(None)
            }
        }
    }
}

/// Returns the variable's name if the text is just a reference to one.
fn reference(text: &str) -> Option<&str> {
    let name = text.strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some(name)
}

/// Converts a typed token: `$NAME` stays a reference, any other dollar sign is escaped.
fn entered(text: String) -> Token {
    if reference(&text).is_some() { Token::Reference(text) } else { Token::Entered(text.replace('$', "$$")) }
}

fn generate() -> Result<String, PromptError> {
    let mut bytes = [0; TOKEN_BYTES];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty()).map_err(std::io::Error::from)?;
    if filled != TOKEN_BYTES {
        return Err(std::io::Error::other("the system returned too few random bytes").into());
    }
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// Makes a text of the file safe to print on one line.
fn printable(text: &str) -> String {
    if text.chars().any(char::is_control) || text.is_empty() { quote(text) } else { text.to_owned() }
}

/// Returns a URL without its credentials.
fn without_credentials(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://(login not shown)@{}", printable(rest)),
        _ => printable(url),
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
