//! What `doctor` found, and how it is shown.

use evenkeel_common::wire::Level;
use serde::Serialize;

use crate::cli::terminal::{Colour, Terminal};
use crate::model::text::count;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Something does not work.
    Error,
    /// Something may not work, or not as expected.
    Warning,
}

/// One thing that is wrong, and the one thing to do about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The check that found it.
    pub(super) area: &'static str,
    /// What it is about: a key, a service, an image, a path.
    pub(super) subject: String,
    /// What was seen.
    pub(super) what: String,
    /// What follows from it.
    pub(super) why: String,
    /// What to do: a command or a key where there is one.
    pub(super) remedy: String,
}

/// What is said of a finding besides where it is.
pub(super) struct Words<What, Why, Remedy> {
    /// As in [`Finding::what`].
    pub(super) what: What,
    /// As in [`Finding::why`].
    pub(super) why: Why,
    /// As in [`Finding::remedy`].
    pub(super) remedy: Remedy,
}

impl<What: Into<String>, Why: Into<String>, Remedy: Into<String>> Words<What, Why, Remedy> {
    /// Something that does not work.
    pub(super) fn error(self, area: &'static str, subject: impl Into<String>) -> Finding {
        self.of(Severity::Error, area, subject)
    }

    /// Something that may not work.
    pub(super) fn warning(self, area: &'static str, subject: impl Into<String>) -> Finding {
        self.of(Severity::Warning, area, subject)
    }

    /// A finding as bad as told.
    pub(super) fn of(self, severity: Severity, area: &'static str, subject: impl Into<String>) -> Finding {
        Finding {
            severity,
            area,
            subject: subject.into(),
            what: self.what.into(),
            why: self.why.into(),
            remedy: self.remedy.into(),
        }
    }
}

/// How an area is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// Nothing was found.
    Ok,
    /// Warnings at most.
    Warning,
    /// At least one error.
    Error,
    /// It could not be looked at, because of a finding elsewhere.
    Skipped,
}

/// One area and how it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct AreaState {
    pub(super) area: &'static str,
    pub(super) state: State,
}

/// Everything that was looked at, and what was found, the worst first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(super) struct Report {
    pub(super) areas: Vec<AreaState>,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// Adds what was found in an area; `None` where it could not be looked at.
    pub(super) fn add(&mut self, area: &'static str, found: Option<Vec<Finding>>) {
        let worst = |found: &[Finding]| match found.iter().map(|finding| finding.severity).min() {
            None => State::Ok,
            Some(Severity::Warning) => State::Warning,
            Some(Severity::Error) => State::Error,
        };
        let state = found.as_deref().map_or(State::Skipped, worst);
        self.areas.push(AreaState { area, state });
        self.findings.extend(found.into_iter().flatten());
        self.findings.sort_by_key(|finding| finding.severity);
    }

    /// Whether nothing is worse than a warning.
    pub(super) fn is_fine(&self) -> bool {
        self.count(Severity::Error) == 0
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// For people.
    pub(super) fn show(&self, terminal: Terminal) -> String {
        let rows: Vec<Vec<(Colour, String)>> = self
            .areas
            .iter()
            .map(|AreaState { area, state }| {
                let (colour, word) = match state {
                    State::Ok => (Colour::Good, "ok"),
                    State::Warning => (Level::Warning.into(), "warning"),
                    State::Error => (Level::Error.into(), "error"),
                    State::Skipped => (Colour::Faint, "skipped"),
                };
                vec![(Colour::Plain, (*area).to_owned()), (colour, word.to_owned())]
            })
            .collect();
        let mut out = terminal.table(&["AREA", "STATE"], &rows);
        for finding in &self.findings {
            let (colour, word) = match finding.severity {
                Severity::Error => (Level::Error.into(), "error"),
                Severity::Warning => (Level::Warning.into(), "warning"),
            };
            let title = terminal.line(&format!("{word}: {}: {}", finding.area, finding.subject));
            out.push_str(&format!("\n{}\n", terminal.paint(colour, &title)));
            for (key, text) in [("what", &finding.what), ("why", &finding.why), ("do", &finding.remedy)] {
                out.push_str(&terminal.wrap(&format!("  {key:<6}"), text));
            }
        }
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        out.push_str(&format!("\n{}, {}\n", count(errors, "error"), count(warnings, "warning")));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity) -> Finding {
        let words = Words { what: "the tag is gone", why: "nothing is updated", remedy: "push it" };
        words.of(severity, "registry", "web:1")
    }

    #[test]
    fn errors_come_first_and_decide_the_exit_code() {
        let mut report = Report::default();
        report.add("disk", Some(vec![]));
        report.add("registry", Some(vec![finding(Severity::Warning)]));
        assert!(report.is_fine());
        report.add("services", None);
        report.add("files", Some(vec![finding(Severity::Error)]));
        assert!(!report.is_fine());
        assert_eq!(report.findings[0].severity, Severity::Error);
        assert_eq!(
            report.show(Terminal::plain()),
            "AREA      STATE\ndisk      ok\nregistry  warning\nservices  skipped\nfiles     error\n\n\
             error: registry: web:1\n  what  the tag is gone\n  why   nothing is updated\n  do    push it\n\n\
             warning: registry: web:1\n  what  the tag is gone\n  why   nothing is updated\n  do    push it\n\n\
             1 error, 1 warning\n"
        );
    }
}
