//! The findings of `doctor`, and their output.

use evenkeel_common::wire::Level;
use serde::Serialize;

use crate::cli::terminal::{Colour, Terminal};
use crate::model::text::count;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Something does not work.
    Error,
    /// Something may not work, or not as expected.
    Warning,
    /// What was found is as it should be, and worth a look.
    Note,
}

/// A problem and its remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The check that found it.
    pub(super) area: &'static str,
    /// The affected key, service, image or path.
    pub(super) subject: String,
    /// The observation.
    pub(super) what: String,
    /// Its consequence.
    pub(super) why: String,
    /// The fix: a command or a configuration key if possible.
    pub(super) remedy: String,
}

/// The text of a finding.
pub(super) struct Words<What, Why, Remedy> {
    /// See [`Finding::what`].
    pub(super) what: What,
    /// See [`Finding::why`].
    pub(super) why: Why,
    /// See [`Finding::remedy`].
    pub(super) remedy: Remedy,
}

impl<What: Into<String>, Why: Into<String>, Remedy: Into<String>> Words<What, Why, Remedy> {
    /// Creates a finding for something that does not work.
    pub(super) fn error(self, area: &'static str, subject: impl Into<String>) -> Finding {
        self.of(Severity::Error, area, subject)
    }

    /// Creates a finding for something that may not work.
    pub(super) fn warning(self, area: &'static str, subject: impl Into<String>) -> Finding {
        self.of(Severity::Warning, area, subject)
    }

    /// Creates a note.
    pub(super) fn note(self, area: &'static str, subject: impl Into<String>) -> Finding {
        self.of(Severity::Note, area, subject)
    }

    /// Creates a finding of the given severity.
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

/// State of an area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// No findings.
    Ok,
    /// Warnings at most.
    Warning,
    /// At least one error.
    Error,
    /// Not checked because of a finding in another area.
    Skipped,
}

/// An area and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct AreaState {
    pub(super) area: &'static str,
    pub(super) state: State,
}

/// All checked areas, and the findings, the most severe first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub(super) struct Report {
    pub(super) areas: Vec<AreaState>,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// Adds the findings of an area; `None` if it could not be checked.
    pub(super) fn add(&mut self, area: &'static str, found: Option<Vec<Finding>>) {
        let worst = |found: &[Finding]| match found.iter().map(|finding| finding.severity).min() {
            None | Some(Severity::Note) => State::Ok,
            Some(Severity::Warning) => State::Warning,
            Some(Severity::Error) => State::Error,
        };
        let state = found.as_deref().map_or(State::Skipped, worst);
        self.areas.push(AreaState { area, state });
        self.findings.extend(found.into_iter().flatten());
        self.findings.sort_by_key(|finding| finding.severity);
    }

    /// Reports whether no finding is worse than a warning.
    pub(super) fn is_fine(&self) -> bool {
        self.count(Severity::Error) == 0
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// Formats the report for users.
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
                Severity::Note => (Colour::Plain, "note"),
            };
            let title = terminal.line(&format!("{word}: {}: {}", finding.area, finding.subject));
            out.push_str(&format!("\n{}\n", terminal.paint(colour, &title)));
            let lines = [("what", &finding.what), ("why", &finding.why), ("do", &finding.remedy)];
            for (key, text) in lines.into_iter().filter(|(_, text)| !text.is_empty()) {
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
    fn errors_come_first_and_determine_the_exit_code() {
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
