//! A real nginx as reverse proxy.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::{PREFIX, request, unused_port, wait_for};

/// A running nginx. Stops on drop.
pub struct Nginx {
    folder: TempDir,
    child: Child,
    port: u16,
}

impl Nginx {
    /// Starts nginx with one server on a free port of all IPv4 interfaces; `locations` are its `location` blocks.
    #[track_caller]
    pub fn start(locations: &str) -> Self {
        Self::start_with("", locations)
    }

    /// Like [`Self::start`], with TLS and a certificate of its own, for any name.
    #[track_caller]
    pub fn start_with_tls(locations: &str) -> Self {
        Self::start_with("ssl", locations)
    }

    fn start_with(tls: &str, locations: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}nginx-"))
            .tempdir()
            .expect("a temporary folder can be created");
        let port = unused_port();
        let mut server = format!("listen 0.0.0.0:{port} {tls};");
        if !tls.is_empty() {
            create_certificate(folder.path());
            server.push_str(" ssl_certificate cert.pem; ssl_certificate_key key.pem;");
        }
        let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| {
            let path = folder.path().join(name);
            format!("{name}_temp_path {};", path.display())
        });
        let config = format!(
            "{user} daemon off; master_process off; pid {pid}; error_log stderr;
             events {{ worker_connections 256; }}
             http {{ access_log off; {paths} server {{ {server} {locations} }} }}",
            pid = folder.path().join("pid").display(),
            paths = paths.join(" ")
        );
        std::fs::write(folder.path().join("nginx.conf"), config).expect("the configuration can be written");
        let child = Command::new(program())
            .args(["-e", "stderr", "-c", "nginx.conf", "-p"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("nginx can be run");
        let nginx = Self { folder, child, port };
        wait_for("nginx to listen", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())
        });
        nginx
    }

    /// Returns its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the file of its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    /// Sends a request without TLS.
    #[track_caller]
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> crate::Reply {
        request(&format!("127.0.0.1:{}", self.port), method, path, headers, &[]).expect("nginx answers")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let config = std::fs::read_to_string(self.folder.path().join("nginx.conf"));
            eprintln!("--- nginx.conf\n{}\n---", config.unwrap_or_default());
        }
    }
}

/// Debian installs it where the path of an ordinary user does not lead.
fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let mut programs = folders.map(|folder| folder.join("nginx"));
    programs
        .find(|path| path.is_file())
        .expect("nginx is installed (Debian: apt-get install nginx-light; dist/test.sh brings it)")
}

fn create_certificate(folder: &Path) {
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("openssl is installed");
    assert!(made.success(), "openssl: {made}");
}
