//! Expansion of `$NAME` and `${NAME}` in configured strings (DECISIONS 2).

/// The environment, passed as an argument so that the rules can be tested without the process environment.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Why a string could not be expanded. The messages never contain the string, since it may be part of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// The variable is not set.
    #[error("the environment variable {0} is not set")]
    Unset(String),
    /// The variable is empty. It must never become an empty token that matches another empty token.
    #[error("the environment variable {0} is empty")]
    Empty(String),
    /// What follows the dollar sign is no variable that is set, and does not look like the name of one: it may be the rest of a
    /// password.
    #[error(
        "has a $ before something that is not the name of a variable that is set, and is not shown since it may be part of a \
         password; a literal $ is written $$"
    )]
    Hidden,
    /// `${` that is not followed by a name and `}`.
    #[error(
        "has a \"${{\" without a name and \"}}\" after it; allowed: $NAME, ${{NAME}}, and $$ for a dollar"
    )]
    Malformed,
}

/// Replaces `$NAME` and `${NAME}` with their values and `$$` with a dollar sign. A dollar sign that is not followed by a
/// name (`a$1`, or at the end) stays as it is. Values are not expanded again.
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

/// Returns the variables that `text` references, whether or not they are set. Their values are usually secrets.
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

/// Splits `text` into the variable name it begins with and the rest.
fn split_name(text: &str) -> (&str, &str) {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    text.split_at(if starts { end } else { 0 })
}

/// Reports whether a name may be shown: it looks like a variable's, not like the rest of a password (DECISIONS 2).
pub fn is_shown(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_uppercase() || b == b'_')
        && bytes.all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

fn lookup(name: &str, env: Env<'_>) -> Result<String, ExpandError> {
    match env(name) {
        Some(value) if !value.is_empty() => Ok(value),
        _ if !is_shown(name) => Err(ExpandError::Hidden),
        None => Err(ExpandError::Unset(name.to_owned())),
        Some(_) => Err(ExpandError::Empty(name.to_owned())),
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
    fn variables_are_replaced_and_dollars_can_be_escaped() {
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
    fn unset_and_empty_variables_are_errors() {
        assert_eq!(expand("x$NONE", &env), Err(ExpandError::Unset("NONE".into())));
        assert_eq!(expand("$AB", &env), Err(ExpandError::Unset("AB".into())));
        assert_eq!(expand("Bearer ${EMPTY}", &env), Err(ExpandError::Empty("EMPTY".into())));
    }

    #[test]
    fn what_may_be_the_rest_of_a_password_is_not_shown() {
        for text in ["p$xyzzy", "p${xyzzy}", "pa$Xyzzy1", "$1x$xyzzy", "p$_xyzzy"] {
            let error = expand(text, &env).unwrap_err();
            assert_eq!(error, ExpandError::Hidden, "{text}");
            let said = error.to_string();
            assert!(said.contains("$$") && !said.contains("yzzy"), "{said}");
        }
        // A variable may have any name if it is set.
        let lower = |name: &str| (name == "token").then(|| "value".to_owned());
        assert_eq!(expand("$token", &lower).as_deref(), Ok("value"));
    }

    #[test]
    fn all_names_are_found_even_after_a_syntax_error() {
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
