//! Head of an HTTP message, for the proxies between a program and the engine.

use std::io::{self, BufRead, Write};

/// Head of a request or a response.
pub(crate) struct Head {
    /// Request line or status line.
    pub(crate) first: String,
    headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end().to_owned();
            if line.is_empty() {
                break;
            }
            lines.push(line);
        }
        let mut lines = lines.into_iter();
        let first = lines.next().unwrap_or_default();
        let headers = lines
            .filter_map(|line| {
                line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            })
            .collect();
        Ok(Some(Self { first, headers }))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Sets a header, or removes it if `value` is `None`.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>) {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.extend(value.map(|value| (name.to_owned(), value.to_owned())));
    }

    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let lines = self
            .headers
            .iter()
            .fold(String::new(), |text, (name, value)| text + name + ": " + value + "\r\n");
        to.write_all(format!("{}\r\n{lines}\r\n", self.first).as_bytes())
    }
}
