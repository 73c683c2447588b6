//! A mail server whose replies are those of Exim and Postfix, for the refusals that a real one can't be made to give on demand.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

/// What a server decides on.
#[derive(Debug, Clone, Copy)]
pub(crate) enum At<'a> {
    /// `RCPT TO` with this address.
    Recipient(&'a str),
    /// The end of this mail.
    Mail(&'a str),
}

/// A mail that was accepted.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// The argument of `EHLO`.
    pub(crate) greeting: String,
    /// The recipients of the envelope.
    pub(crate) to: Vec<String>,
    /// Headers and body.
    pub(crate) text: String,
}

type Replies = Box<dyn Fn(At<'_>) -> Option<&'static str> + Send + Sync>;

/// A server that accepts everything but what its function refuses with a reply.
pub(crate) struct SmtpStub {
    /// Its port on 127.0.0.1.
    pub(crate) port: u16,
    received: Arc<Mutex<Vec<Received>>>,
}

impl SmtpStub {
    pub(crate) fn start(replies: impl Fn(At<'_>) -> Option<&'static str> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let (kept, replies) = (received.clone(), Arc::<Replies>::new(Box::new(replies)));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, replies) = (kept.clone(), replies.clone());
                std::thread::spawn(move || drop(serve(stream, &replies, &kept)));
            }
        });
        Self { port, received }
    }

    /// The accepted mails so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().clone()
    }
}

fn serve(stream: TcpStream, replies: &Replies, kept: &Mutex<Vec<Received>>) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    let mut mail = Received { greeting: String::new(), to: Vec::new(), text: String::new() };
    out.write_all(b"220 stub ESMTP\r\n")?;
    while let Some(line) = lines.next().transpose()? {
        let (verb, rest) = line.split_once([' ', ':']).unwrap_or((&line, ""));
        let reply = match verb.to_ascii_uppercase().as_str() {
            "EHLO" => {
                rest.clone_into(&mut mail.greeting);
                "250 stub".to_owned()
            }
            "RCPT" => {
                let address = rest.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
                if let Some(refusal) = replies(At::Recipient(&address)) {
                    refusal.to_owned()
                } else {
                    mail.to.push(address);
                    "250 Accepted".to_owned()
                }
            }
            "DATA" => {
                out.write_all(b"354 Enter message, ending with \".\" on a line by itself\r\n")?;
                mail.text.clear();
                for line in lines.by_ref() {
                    match line?.as_str() {
                        "." => break,
                        line => mail.text.extend([line, "\n"]),
                    }
                }
                if let Some(refusal) = replies(At::Mail(&mail.text)) {
                    refusal.to_owned()
                } else {
                    kept.lock().push(mail.clone());
                    "250 OK id=1".to_owned()
                }
            }
            "MAIL" | "RSET" => {
                mail.to.clear();
                "250 OK".to_owned()
            }
            "QUIT" => {
                out.write_all(b"221 closing\r\n")?;
                break;
            }
            _ => "250 OK".to_owned(),
        };
        out.write_all(format!("{reply}\r\n").as_bytes())?;
    }
    Ok(())
}
