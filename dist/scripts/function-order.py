#!/usr/bin/env python3
"""Writes dist/function-order.ld: the functions that the program runs while it starts and rests, in both modes.

The kernel maps 64 KiB around every page of code that is touched. Functions that run, scattered over 6 MiB of those that do
not, so make most of the program resident. The linker places them together instead.

Usage: EVENKEEL_KEEP_SYMBOLS=1 cargo build --release -p evenkeel
       dist/scripts/function-order.py target/release/evenkeel

Needs gdb and nm, and takes about five minutes. Engine and registry are fakes. The linker ignores names that are gone, and
names that are missing only cost memory, up to 64 KiB each: write the file again after functions were renamed or moved on a
large scale, and when the benchmarks show that memory at rest has grown.

Names are mangled as .cargo/config.toml asks for: they tell instances of a generic function apart by their types. Only the
hashes of crates change from build to build (with the target, the profile, the versions of dependencies); the file has a
wildcard for each.
"""

import collections
import http.server
import json
import os
import pathlib
import re
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

try:
    import gdb
except ImportError:
    gdb = None

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "function-order.ld"
HEAD = """/* Written by dist/scripts/function-order.py, which says why. Not to be edited by hand. */
SECTIONS
{
  .text.resident :
  {
"""
TAIL = """  }
}
INSERT BEFORE .text;
"""
LONGEST = 300
# The beginning of a long name stands for all names that begin so, where for the most part these run.
MOST = 0.7
AGENT_TOKEN = "0123456789abcdef-of-a"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def ask(port, path, body=None, headers=None):
    """Sends a request; whatever the answer is."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            answer.read()
    except urllib.error.HTTPError:
        pass


DIGEST = "sha256:" + 64 * "1"
CONTAINER = 64 * "2"
LABELS = {"com.docker.compose.project": "shop", "com.docker.compose.service": "web"}
USAGE = {"cpu_usage": {"total_usage": 1_000_000}, "system_cpu_usage": 2_000_000, "online_cpus": 2}


class Engine(http.server.BaseHTTPRequestHandler):
    """An engine on which one container runs, and the registry that its image comes from."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer({})

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path.endswith("/events"):
            # The stream begins, and stays silent.
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            threading.Event().wait()
        elif path.endswith("/version"):
            self.answer({"Version": "27.0.0", "ApiVersion": "1.46", "MinAPIVersion": "1.24"})
        elif path.endswith("/containers/json"):
            self.answer([{"Id": CONTAINER, "Status": "Up 3 hours", "Labels": LABELS}])
        elif path.endswith("/stats"):
            memory = {"usage": 50_000_000, "limit": 100_000_000, "stats": {"inactive_file": 1_000_000}}
            self.answer({"read": "2026-01-02T03:04:05Z", "cpu_stats": USAGE, "memory_stats": memory})
        elif "/containers/" in path:
            state = {"Status": "running", "Running": True, "StartedAt": "2026-01-01T00:00:00Z", "ExitCode": 0}
            config = {"Image": self.server.image, "Labels": LABELS}
            self.answer({"Id": CONTAINER, "Name": "/shop-web-1", "Image": DIGEST, "State": state, "Config": config})
        elif "/images/" in path:
            repository = self.server.image.rpartition(":")[0]
            self.answer({"Id": DIGEST, "RepoTags": [self.server.image], "RepoDigests": [f"{repository}@{DIGEST}"]})
        else:
            self.answer({"MemTotal": 1 << 34})

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", DIGEST)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self):
        connection, _ = super().get_request()
        return connection, ("engine", 0)


def fakes(folder):
    """Starts engine and registry; the registry's address."""
    registry = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    engine = UnixServer(f"{folder}/engine.sock", Engine)
    host = f"127.0.0.1:{registry.server_port}"
    for server in (registry, engine):
        server.image = f"{host}/shop:1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
    return host


def configuration(mode, port, folder):
    """A small configuration that lets everything work that works at rest."""
    if mode == "warden":
        people = "0123456789abcdef-of-people"
        return {
            "api": {"address": [f"127.0.0.1:{port}"], "token": people, "state_path": f"{folder}/state"},
            "agents": [{"id": "a", "url": f"http://127.0.0.1:{port}", "token": AGENT_TOKEN}],
        }
    compose = folder / "compose.yml"
    compose.write_text("services: {}\n")
    service = {"name": "shop", "images": ["shop:1"], "compose_project": "shop", "compose_files": [str(compose)]}
    service |= {"auto_update": True, "auto_heal": True}
    return {
        "registry": {"url": f"http://{fakes(folder)}", "poll_interval": 10},
        "api": {"address": [f"127.0.0.1:{port}"]},
        "monitor": {"stats_interval": 10},
        "state": {"path": f"{folder}/state"},
        "audit": {"path": f"{folder}/audit.jsonl"},
        "services": [service],
    }


def symbols(program):
    """Address, size and mangled name of each function."""
    for line in subprocess.check_output(["nm", "-S", "--defined-only", program], text=True).splitlines():
        fields = line.split()
        if len(fields) == 4 and fields[2] in "tTwW" and pattern(fields[3]):
            yield int(fields[0], 16), int(fields[1], 16), fields[3]


def run(program, mode):
    """Addresses of the functions that are entered: each has a breakpoint that is hit once."""
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "addresses").write_text("\n".join({str(address) for address, _, _ in symbols(program)}))
        (folder / "config.json").write_text(json.dumps(configuration(mode, port, folder)))
        command = ["gdb", "-nx", "-batch", "-x", __file__, "--args", program, "--mode", mode]
        command += ["--config", folder / "config.json"]
        environment = {**os.environ, "RECORD": name, "DOCKER_HOST": f"unix://{folder}/engine.sock"}
        with open(folder / "log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        for _ in range(6000):
            try:
                ask(port, "/health")
                break
            except OSError:
                if process.poll() is not None:
                    sys.exit((folder / "log").read_text())
                time.sleep(0.1)
        if mode == "warden":
            entry = {
                "timestamp": "2026-01-02T03:04:05Z", "service": "web", "event": "updated", "message": "m",
                "level": "info", "seq": 1,
            }
            headers = {"authorization": f"Bearer {AGENT_TOKEN}", "content-type": "application/json"}
            ask(port, "/ingest", json.dumps(entry).encode(), headers)
        for path in ("/status", "/metrics"):
            ask(port, path)
        # A second round of heartbeats, or some polls; gdb may be slow.
        before = -1
        while (count := (folder / "hits").stat().st_size) > before:
            before = count
            time.sleep(45)
        os.kill(int((folder / "pid").read_text()), signal.SIGKILL)
        process.wait(60)
        return {int(address) for address in (folder / "hits").read_text().split()}


def record():
    """Inside gdb: writes down the functions that are entered."""
    folder = pathlib.Path(os.environ["RECORD"])
    for setting in ("pagination off", "confirm off", "breakpoint always-inserted on", "print thread-events off"):
        gdb.execute(f"set {setting}")
    gdb.execute("handle SIGPIPE SIGHUP nostop noprint pass", to_string=True)
    gdb.execute("starti", to_string=True)
    process = gdb.selected_inferior()
    (folder / "pid").write_text(str(process.pid))
    base = int(pathlib.Path(f"/proc/{process.pid}/maps").read_text().partition("-")[0], 16)
    for address in (folder / "addresses").read_text().split():
        gdb.execute(f"tbreak *{base + int(address)}", to_string=True)
    with open(folder / "hits", "w", encoding="utf-8") as hits:
        while process.pid:
            gdb.execute("continue", to_string=True)
            if process.pid:
                print(int(gdb.selected_frame().pc()) - base, file=hits, flush=True)


def pattern(name):
    """The name with wildcards for what changes from build to build; `None` for what is not a function of Rust."""
    if not name.startswith("_R"):
        return None
    # The hash of a crate, and references back into the name, whose numbers depend on how long the hashes before are.
    name = re.sub(r"Cs[0-9A-Za-z]+_", "Cs*_", name)
    name = re.sub(r"B[0-9A-Za-z]+_", "B*_", name)
    # What the optimizer appends to names that it had to tell apart.
    return re.sub(r"\.(llvm\.)?[0-9]+$", "*", name)


def shorten(name):
    """The beginning of a name, which can be thousands of characters long."""
    return name if len(name) <= LONGEST else name[:LONGEST] + "*"


def order(program, hits):
    """The patterns of the functions that run."""
    total, running = collections.Counter(), collections.Counter()
    for address, size, name in symbols(program):
        total[shorten(pattern(name))] += size
        if address in hits:
            running[shorten(pattern(name))] += size
    names = set()
    for address, _, name in symbols(program):
        if address in hits:
            short = shorten(pattern(name))
            names.add(short if running[short] >= MOST * total[short] else pattern(name))
    return sorted(names)


def main():
    program = sys.argv[1]
    warden, agent = (order(program, run(program, mode)) for mode in ("warden", "agent"))
    # What both run is in the middle, so that each mode has one stretch of its own.
    in_warden, in_agent = set(warden), set(agent)
    names = [name for name in warden if name not in in_agent]
    names += [name for name in warden if name in in_agent]
    names += [name for name in agent if name not in in_warden]
    with open(SCRIPT, "w", encoding="utf-8") as out:
        out.write(HEAD)
        # What is marked as cold has a section with the prefix .text.unlikely.
        out.writelines(f"    *(.text*.{name})\n" for name in names)
        out.write(TAIL)
    print(f"{SCRIPT}: {len(warden)} names of the warden and {len(agent)} of the agent, {len(names)} in all")


if gdb:
    record()
else:
    main()
