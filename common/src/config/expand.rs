//! `$NAME` and `${NAME}` in configured texts (DECISIONS 2).

/// The environment, as an argument: rules stay testable and nothing reads the process behind their back.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Why a text could not be expanded. None of these shows the text: it may be half a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// The variable is not set.
    #[error("the environment variable {0} is not set")]
    Unset(String),
    /// The variable is set to nothing. It must never become an empty token that matches another empty one.
    #[error("the environment variable {0} is empty")]
    Empty(String),
    /// `${` and then something else than a name and `}`.
    #[error(
        "has a \"${{\" without a name and \"}}\" after it; allowed: $NAME, ${{NAME}}, and $$ for a dollar"
    )]
    Malformed,
}

/// Replaces `$NAME` and `${NAME}` by their values and `$$` by a dollar. A dollar that no name can follow
/// (`a$1`, or the last character) stays as it is. What a variable holds is not expanded again.
pub fn expand(text: &str, env: Env<'_>) -> Result<String, ExpandError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('{') {
            let (name, after) = split_name(inner);
            rest = after.strip_prefix('}').filter(|_| !name.is_empty()).ok_or(ExpandError::Malformed)?;
            out.push_str(&lookup(name, env)?);
        } else {
            let (name, after) = split_name(rest);
            rest = after;
            if name.is_empty() {
                out.push('$');
            } else {
                out.push_str(&lookup(name, env)?);
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// The variables that `text` names, whether they are set or not. What stands in one of them is a secret as a rule.
pub fn names(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            rest = after;
            continue;
        }
        let (name, after) = split_name(rest.strip_prefix('{').unwrap_or(rest));
        if !name.is_empty() {
            found.push(name.to_owned());
            rest = after;
        }
    }
    found
}

/// The variable name that `text` begins with, and what follows it.
fn split_name(text: &str) -> (&str, &str) {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    text.split_at(if starts { end } else { 0 })
}

fn lookup(name: &str, env: Env<'_>) -> Result<String, ExpandError> {
    match env(name) {
        None => Err(ExpandError::Unset(name.to_owned())),
        Some(value) if value.is_empty() => Err(ExpandError::Empty(name.to_owned())),
        Some(value) => Ok(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "A" => Some("alpha".into()),
            "B_2" => Some("$A".into()),
            "EMPTY" => Some(String::new()),
            _ => None,
        }
    }

    #[test]
    fn variables_are_replaced_and_dollars_can_be_written() {
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$A", "alpha"),
            ("${A}", "alpha"),
            ("x${A}y$A.z", "xalphayalpha.z"),
            ("$A$A", "alphaalpha"),
            ("$B_2", "$A"),
            ("$$A", "$A"),
            ("$$$A", "$alpha"),
            ("pa$$word", "pa$word"),
            ("a$1", "a$1"),
            ("100$", "100$"),
            ("$ A", "$ A"),
            ("é$A…", "éalpha…"),
            ("$Aé", "alphaé"),
        ] {
            assert_eq!(expand(text, &env).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn unset_and_empty_variables_are_never_silently_nothing() {
        assert_eq!(expand("x$NONE", &env), Err(ExpandError::Unset("NONE".into())));
        assert_eq!(expand("$AB", &env), Err(ExpandError::Unset("AB".into())));
        assert_eq!(expand("Bearer ${EMPTY}", &env), Err(ExpandError::Empty("EMPTY".into())));
    }

    #[test]
    fn all_names_are_found_also_those_after_a_fault() {
        for (text, expected) in [
            ("", &[] as &[&str]),
            ("$$A 100$ a$1", &[]),
            ("x$NONE/$A", &["NONE", "A"]),
            ("${A}${B_2", &["A", "B_2"]),
            ("${A:-secret}$$$C", &["A", "C"]),
        ] {
            assert_eq!(names(text), expected, "{text}");
        }
    }

    #[test]
    fn broken_braces_are_refused_without_showing_the_text() {
        for text in ["${", "${}", "${A", "${A:-secret}", "${A B}", "${1}", "${é}"] {
            let error = expand(text, &env).unwrap_err();
            assert_eq!(error, ExpandError::Malformed, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
