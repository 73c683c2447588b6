//! The subset of minijinja that a template may use. The engine's fuel limits steps, not memory or depth: `"x" * 99999999`
//! is one step and is computed while parsing, and a chain of a thousand filters overflows the stack. Therefore the template
//! is checked before the engine parses it. Everything that can produce text longer than its input fields is rejected:
//! operators other than comparisons, captured blocks, functions, deep nesting.

/// Maximum length in bytes, more than any message needs.
pub(super) const LONGEST: usize = 16 * 1024;
const MOST_TAGS: usize = 100;
const MOST_TOKENS: usize = 60;
const DEEPEST_BRACKETS: usize = 8;
const DEEPEST_BLOCKS: usize = 12;
const STATEMENTS: [&str; 6] = ["if", "elif", "else", "endif", "for", "endfor"];
/// Characters of the allowed tokens other than strings, names and numbers.
const SIGNS: &str = "-.,|()[]:=!<>";

/// Checks a template; errors say what is allowed.
pub(super) fn check(template: &str) -> Result<(), String> {
    if template.len() > LONGEST {
        return Err(format!("it is longer than {LONGEST} bytes"));
    }
    let (mut rest, mut tags, mut open) = (template, 0, 0);
    while let Some(at) = rest.find("{{").into_iter().chain(rest.find("{%")).chain(rest.find("{#")).min() {
        let kind = rest.as_bytes()[at + 1];
        rest = &rest[at + 2..];
        if kind == b'#' {
            rest = rest.split_once("#}").map_or("", |(_, after)| after);
            continue;
        }
        tags += 1;
        if tags > MOST_TAGS {
            return Err(format!("it has more than {MOST_TAGS} {{{{ }}}} and {{% %}}"));
        }
        let mut tag = Tag { rest, end: if kind == b'{' { "}}" } else { "%}" } };
        tag.skip_control();
        if kind == b'%' {
            let word = tag.word();
            match word {
                "if" | "for" => open += 1,
                "endif" | "endfor" => open = usize::saturating_sub(open, 1),
                _ => {}
            }
            if !STATEMENTS.contains(&word) {
                return Err(format!("{{% {word} %}} is not allowed; allowed: {}", STATEMENTS.join(", ")));
            }
        }
        if open > DEEPEST_BLOCKS {
            return Err(format!("it has more than {DEEPEST_BLOCKS} nested blocks"));
        }
        tag.check()?;
        rest = tag.rest;
    }
    Ok(())
}

/// The inside of one tag.
struct Tag<'a> {
    rest: &'a str,
    end: &'static str,
}

impl<'a> Tag<'a> {
    fn skip_control(&mut self) {
        self.rest = self.rest.strip_prefix(['-', '+']).unwrap_or(self.rest).trim_start();
    }

    /// Consumes the next name or number, which may be empty.
    fn word(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// Consumes the rest of the tag. An unterminated tag is left for the engine to reject.
    fn check(&mut self) -> Result<(), String> {
        let (mut tokens, mut depth) = (0, 0);
        loop {
            self.rest = self.rest.trim_start();
            let at_end = self.rest.strip_prefix(['-', '+']).unwrap_or(self.rest);
            if let Some(after) = at_end.strip_prefix(self.end) {
                self.rest = after;
                return Ok(());
            }
            let Some(next) = self.rest.chars().next() else { return Ok(()) };
            tokens += 1;
            if tokens > MOST_TOKENS {
                return Err(format!("one of its expressions has more than {MOST_TOKENS} parts"));
            }
            match next {
                '"' | '\'' => self.text(next),
                c if c.is_alphanumeric() || c == '_' => {
                    if self.word() == "recursive" {
                        return Err("a loop can't be recursive".to_owned());
                    }
                }
                c if SIGNS.contains(c) => {
                    match c {
                        '(' | '[' => depth += 1,
                        ')' | ']' => depth = usize::saturating_sub(depth, 1),
                        _ => {}
                    }
                    if depth > DEEPEST_BRACKETS {
                        return Err(format!("it has more than {DEEPEST_BRACKETS} nested brackets"));
                    }
                    self.rest = &self.rest[1..];
                }
                c => {
                    return Err(format!(
                        "{c:?} is not allowed between {{{{ }}}} or {{% %}}: only names, strings, numbers, filters and comparisons are"
                    ));
                }
            }
        }
    }

    /// Skips a quoted string.
    fn text(&mut self, quote: char) {
        let mut escaped = false;
        for (at, c) in self.rest.char_indices().skip(1) {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == quote => {
                    self.rest = &self.rest[at + 1..];
                    return;
                }
                _ => {}
            }
        }
        self.rest = "";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructs_that_messages_need_are_allowed() {
        for template in [
            "",
            "plain } text %}",
            "{{ message }}{{- service | upper -}}",
            "{% if level == \"error\" and not (reason in ['a', 'b']) %}x{% elif container is defined %}y{%- else -%}z{% endif %}",
            "{% for c in message[:5] %}{{ loop.index }}{{ c }}{% endfor %}",
            "{# anything * ~ {% set %} #}{{ '* ~ \\' }} %}' }}",
            "{\"text\": {{ message | tojson }}}",
        ] {
            assert_eq!(check(template), Ok(()), "{template}");
        }
    }

    #[test]
    fn unbounded_constructs_are_rejected_before_the_engine_parses_them() {
        for (template, why) in [
            ("{{ 'x' * 99999999 }}", "'*' is not allowed"),
            ("{{ message ~ message }}", "'~' is not allowed"),
            ("{{ message + message }}", "'+' is not allowed"),
            ("{{ '%99999999d' % 1 }}", "'%' is not allowed"),
            ("{{ {'a': 1} }}", "'{' is not allowed"),
            ("{% set a = message %}", "{% set %} is not allowed"),
            ("{%- filter upper %}", "{% filter %} is not allowed"),
            ("{% raw %}{{ ' {% endraw %}{{ 'x' * 9 }}", "{% raw %} is not allowed"),
            ("{% for a in [[1]] recursive %}{% endfor %}", "can't be recursive"),
        ] {
            let error = check(template).unwrap_err();
            assert!(error.contains(why), "{template}: {error}");
        }
        for template in [
            format!("{{{{ message{} }}}}", " | upper".repeat(100)),
            format!("{{{{ {}1{} }}}}", "(".repeat(20), ")".repeat(20)),
            format!("{{{{ {}1 }}}}", "not ".repeat(100)),
            format!("{}{}", "{% if 1 %}".repeat(20), "{% endif %}".repeat(20)),
            format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(200)),
            "x".repeat(LONGEST + 1),
        ] {
            assert!(check(&template).is_err(), "{}…", &template[..40]);
        }
    }
}
