"""Checks the manual and the README: configurations, samples, commands, endpoints, keys, links, test names, and that no page
refers to an internal document or sends a signal with the engine's client.
Usage: check_docs.py REPO PROGRAM

A fenced JSON block is a complete agent configuration, unless the line before it is a comment:
<!-- warden --> for a warden configuration, <!-- part --> for a block that is not checked.
"""

import base64
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import yaml

import receivers

REPO = pathlib.Path(sys.argv[1]).resolve()
PROGRAM = sys.argv[2]
DOCS = REPO / "dist/docs"
PAGES = sorted(DOCS.glob("*.md")) + [REPO / "README.md"] + sorted((REPO / ".github").glob("*.md"))
BLOCK = re.compile(r"^(?:<!-- (?P<kind>\w+) -->\n)?```json\n(?P<text>.*?)^```$", re.M | re.S)
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")

faults = []


def fault(page, text):
    faults.append(f"{page.relative_to(REPO)}: {text}")


# --- configurations ------------------------------------------------------------------------------------------------


def environment(text):
    """Values for all variables of a configuration: URLs, which are valid for any key, all different."""
    names = {one or two for one, two in VARIABLE.findall(text)}
    urls = {name: f"https://{name.lower().replace('_', '-')}.example.com/x" for name in names}
    urls |= {name: "postgres://user:word@db.example.com/x" for name in names & {"DATABASE_URL"}}
    return os.environ | urls


# An Ed25519 public key in the format of `signed_by`, without a known private key.
PUBLIC_KEY = "\n".join([
    "-----BEGIN PUBLIC KEY-----",
    base64.b64encode(bytes.fromhex("302a300506032b6570032100") + bytes(range(32))).decode(),
    "-----END PUBLIC KEY-----",
    "",
])


def with_files(value, folder):
    """The configuration with its files created in a folder."""
    if isinstance(value, dict):
        return {key: moved(item, folder) if key in ("compose_files", "env_file", "signed_by") else with_files(item, folder)
                for key, item in value.items()}
    return [with_files(item, folder) for item in value] if isinstance(value, list) else value


def moved(paths, folder):
    if isinstance(paths, list):
        return [moved(path, folder) for path in paths]
    path = folder / paths.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text({".yml": "services: {}\n", ".yaml": "services: {}\n", ".pub": PUBLIC_KEY}.get(path.suffix, "A=b\n"))
    path.chmod(0o600)
    return str(path)


def run(arguments, text):
    return subprocess.run([PROGRAM, *arguments], env=environment(text), capture_output=True, text=True, timeout=60,
                          check=False)


def check_configuration(page, kind, text, folder):
    line = page.read_text()[: page.read_text().index(text)].count("\n") + 1
    try:
        value = with_files(json.loads(text), folder)
    except ValueError as error:
        return fault(page, f"line {line}: {error}")
    file = folder / "config.json"
    file.write_text(json.dumps(value))
    file.chmod(0o600)
    mode = ["--mode", "warden"] if kind == "warden" else []
    ended = run([*mode, "--check", "--config", str(file)], text)
    said = (ended.stdout + ended.stderr).strip()
    if ended.returncode != 0 or ("warnings: 0" not in said and "warning" in said):
        fault(page, f"line {line}: {said}")
    if kind != "warden" and value.get("notifications", {}).keys() & {"webhooks", "discord"}:
        check_bodies(page, line, value, text, file)


def check_image_sample(name, mode):
    """Checks a sample for the container images, where the API must listen on all addresses despite the warning."""
    file = REPO / f"dist/packaging/image/sample/{name}"
    ended = run([*mode, "--check", "--config", str(file)], file.read_text())
    said = [line for line in (ended.stdout + ended.stderr).splitlines() if "warning: " in line and "api.address" not in line]
    if ended.returncode != 0 or said:
        fault(file, "; ".join(said) or ended.stderr.strip())


def check_image_compose():
    """Checks the resolved compose samples for the container images, without and with a database."""
    if not shutil.which("docker"):
        return
    source = REPO / "dist/packaging/image"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file in [*source.glob("*.yml"), *(source / "sample").glob("*.json")]:
            shutil.copy(file, folder)
        plain = re.sub(r"(_TOKEN=)$", r"\1x", (source / "sample/env").read_text(), flags=re.M)
        full = re.sub(r"^#(?=[A-Z_]+=)", "", plain, flags=re.M).replace("PASSWORD=\n", "PASSWORD=word\n")
        for text, services, url in [
            (plain, {"agent", "warden"}, None),
            (full, {"agent", "warden", "postgres"}, "postgres://evenkeel:word@postgres:5432/evenkeel"),
        ]:
            (folder / ".env").write_text(text)
            command = ["docker", "compose", "config", "--format", "json"]
            said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if said.returncode != 0:
                fault(source / "compose.yml", said.stderr.strip())
                continue
            made = json.loads(said.stdout)["services"]
            if made.keys() != services or made["warden"]["environment"].get("DATABASE_URL") != url:
                fault(source / "compose.yml", f"unexpected: {said.stdout}")
            for mount in made["warden"]["volumes"]:
                if mount["type"] == "bind" and not pathlib.Path(mount["source"]).is_file():
                    fault(source / "compose.yml", f"{mount['source']} is not a sample")


class Receiver(http.server.BaseHTTPRequestHandler):
    """Records the requests of webhooks."""

    got = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        Receiver.got.append((self.path, self.headers.get("Content-Type", ""), body))
        self.send_response(200)
        self.end_headers()

    do_PUT = do_POST

    def log_message(self, *_):
        pass


def check_bodies(page, line, value, text, file):
    """Sends a sample through each channel to a local server. A body declared as JSON must be JSON and match the format of the
    receiver, if that is known."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    channels = {name: value["notifications"][name] for name in ("webhooks", "discord") if name in value["notifications"]}
    senders = [(webhook, "url", webhook["name"]) for webhook in channels.get("webhooks", [])]
    senders += [(channels["discord"], "webhook_url", "discord")] if "discord" in channels else []
    for number, (sender, address, _) in enumerate(senders):
        sender[address] = f"http://127.0.0.1:{server.server_port}/{number}"
        # Send every sample regardless of the filters.
        sender.pop("events", None)
        sender.pop("min_level", None)
    file.write_text(json.dumps({"notifications": channels, "services": []}))
    Receiver.got = []
    ended = run(["test-notify", "--config", str(file)], text)
    server.shutdown()
    if ended.returncode != 0 or len(Receiver.got) != len(senders):
        fault(page, f"line {line}: test-notify: {(ended.stdout + ended.stderr).strip()}")
    for path, kind, body in Receiver.got:
        name = senders[int(path.split("/")[1].split("?")[0])][2]
        try:
            sent = json.loads(body) if "json" in kind else None
        except ValueError as error:
            fault(page, f"line {line}: {name}: the body is not JSON ({error}): {body}")
            continue
        if name in receivers.SHAPES:
            for text in receivers.faults(receivers.SHAPES[name], sent):
                fault(page, f"line {line}: {name} would not accept the body: {text}")


# --- links -----------------------------------------------------------------------------------------------------------


def prose(text):
    """The text without code blocks and comments."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.sub(r"<!--.*?-->", "", text, flags=re.S)


def anchors(page):
    """The anchors of the headings, as generated by mdBook and GitHub."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page.read_text()), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def check_links(page):
    text = re.sub(r"`[^`\n]*`", "", prose(page.read_text()))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            fault(page, f"broken link {target}")
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            fault(page, f"the link {target}: {file.name} has no such heading")


def check_contents():
    listed = re.findall(r"\]\(([\w.-]+\.md)\)", (DOCS / "SUMMARY.md").read_text())
    for name in listed:
        if listed.count(name) > 1:
            fault(DOCS / "SUMMARY.md", f"{name} is listed twice")
    for page in DOCS.glob("*.md"):
        if page.name not in listed and page.name != "SUMMARY.md":
            fault(DOCS / "SUMMARY.md", f"{page.name} is not listed")


# --- commands, endpoints, keys ---------------------------------------------------------------------------------------

# The OpenAPI document of the warden requires its token; `reference-warden-api.md` is generated from it.
WARDEN = {"POST /ingest", "GET /fleet", "POST /fleet/ask", "POST /fleet/release", "POST /inventory", "GET /events", "GET /", "POST /login", "POST /logout", "GET /machines", "GET /history", "GET /health", "GET /metrics",
          "GET /fleet/images", "POST /freeze", "POST /thaw", "POST /unblock"}


def endpoints():
    """The endpoints of a running agent, as `METHOD /path` with {name} for a service."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        file = pathlib.Path(folder, "config.json")
        file.write_text(json.dumps({"api": {"address": [f"127.0.0.1:{port}"]}, "state": {"path": f"{folder}/state"}}))
        agent = subprocess.Popen([PROGRAM, "--config", str(file)], stderr=subprocess.DEVNULL,
                                 env=os.environ | {"DOCKER_HOST": f"unix://{folder}/none.sock"})
        try:
            for _ in range(100):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json") as answer:
                        paths = json.load(answer)["paths"]
                    return {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
                except OSError:
                    time.sleep(0.1)
            sys.exit("the agent does not respond")
        finally:
            agent.terminate()
            agent.wait()


def check_endpoint(page, method, path, known):
    path = path.split("?")[0]
    shape = re.sub(r"^(/[a-z-]+/)(?:<\w+>|[\w.-]+)$", r"\1{name}", path)
    if known.isdisjoint({f"{method} {path}", f"{method} {shape}"}):
        fault(page, f"there is no endpoint {method} {path}")


def check_endpoints(page, known):
    # Calls of the engine are no endpoints of the programs.
    text = re.sub(r"^\| needed by \| calls \|\n(?:\|.*\n)+", "", page.read_text(), flags=re.M)
    for method, path in re.findall(r"`(GET|POST|DELETE|PUT) (/[^\s`]*)`", text):
        check_endpoint(page, method, path, known)
    for line in re.findall(r"curl [^\n`]*(?:localhost|127\.0\.0\.1):9090/[^\n`]*", text):
        method = re.search(r"-X (\w+)", line)
        path = re.search(r"9090(/[^\s'\"`|]*)", line)[1]
        check_endpoint(page, method[1] if method else "GET", path, known)


def program(name):
    """The path of a program; `evenkeel` has the commands of both others."""
    sibling = pathlib.Path(PROGRAM).with_name(name)
    return str(sibling) if sibling.exists() else PROGRAM


def help_of(name, *command):
    return subprocess.run([program(name), *command, "--help"], capture_output=True, text=True, check=True).stdout


def commands_of(name):
    return set(re.findall(r"^  ([a-z][\w-]*)  ", help_of(name).split("\nOptions:")[0], re.M))


def check_evenkeel(page, command):
    name, *words = command.split("#")[0].split("|")[0].split()
    subcommand = [word for word in words[:1] if re.fullmatch(r"[a-z][\w-]*", word)]
    if not commands_of(name).issuperset(subcommand):
        return fault(page, f"{command}: {name} has no command {words[0]}")
    said = help_of(name, *subcommand)
    for flag in (word for word in words if word.startswith("-")):
        if not re.search(rf"(^|[\s,]){re.escape(flag.split('=')[0])}\b", said):
            fault(page, f"{command}: there is no flag {flag}")


# Programs that users can be expected to have. Any other word is a typo or needs an explanation.
TOOLS = set("""apk apt bash cargo cd cosign cp curl dnf docker echo export gh git install journalctl jq kill openssl pacman promtool
sh sha256sum ss ssh stat sudo systemctl tar""".split())
UNITS = {"evenkeel-agent", "evenkeel-warden", "docker", "docker.socket", "podman.socket", "dockward"}


def check_shell(page, text):
    """Checks a block of commands: syntax, programs, units and flags."""
    parsed = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if parsed.returncode != 0:
        fault(page, f"bash can't read the commands: {parsed.stderr.strip()}")
    # A script, not commands to type.
    if text.startswith("#!"):
        return
    for line in re.sub(r"\\\n *", " ", text).splitlines():
        words = line.split("#")[0].split()
        words = words[1:] if words[:1] == ["sudo"] else words
        if not words:
            continue
        if words[0].startswith("evenkeel"):
            check_evenkeel(page, " ".join(words))
        elif words[0] not in TOOLS:
            fault(page, f"{line}: unknown program {words[0]}")
        for unit in re.findall(r"(?:systemctl [a-z-]+(?: --now)?|journalctl -u) ([a-z][\w.-]+)", line):
            if unit not in UNITS:
                fault(page, f"{line}: there is no unit {unit}")
        if words[:2] == ["docker", "compose"] and shutil.which("docker"):
            rest = re.sub(r"(^| )(-p|-f|--[a-z-]+) \S+", "", " ".join(words[2:])).split()
            subcommand = next((word for word in rest if re.fullmatch("[a-z]+", word)), "")
            said = subprocess.run(["docker", "compose", subcommand, "--help"], capture_output=True, text=True, check=False)
            if said.returncode != 0:
                fault(page, f"{line}: docker compose has no {subcommand}")


def check_commands(page):
    text = page.read_text()
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S):
        check_shell(page, block)
    for command in re.findall(r"`(?:sudo )?(evenkeel(?:-agent|-warden)? [^`]*)`", text):
        check_evenkeel(page, command)
    for script in re.findall(r"bash (dist/[\w./-]+)", text):
        if not (REPO / script).exists():
            fault(page, f"{script} does not exist")


# --- YAML ------------------------------------------------------------------------------------------------------------


def check_yaml(page, text):
    """Checks compose files with compose and scrape configurations with promtool, if installed; others must be valid YAML."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return fault(page, f"a sample is not YAML: {error}")
    promtool = shutil.which("promtool") or REPO / "target/tools/promtool"
    if "services" in value and shutil.which("docker"):
        command = ["docker", "compose", "-p", "sample", "-f", "-", "config", "-q"]
        said = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    elif "scrape_configs" in value and pathlib.Path(promtool).exists():
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            file.write(text)
            file.flush()
            command = [promtool, "check", "config", "--syntax-only", file.name]
            said = subprocess.run(command, capture_output=True, text=True, check=False)
    else:
        return None
    if said.returncode != 0:
        fault(page, f"{command[0]} does not accept a sample: {(said.stdout + said.stderr).strip()}")
    return None


# --- names of tests --------------------------------------------------------------------------------------------------


def check_tests(page):
    """Checks that each test named on the page exists, and that every change runs it."""
    rows = re.findall(r"^\| [^|]+ \| (`[^|]+) \|$", page.read_text(), re.M)
    if not rows:
        fault(page, "the table of tested features has no rows")
    folders = ("agent", "common", "warden", "dist", "contract-tests")
    sources = "".join(file.read_text() for folder in folders for file in (REPO / folder).rglob("*.rs"))

    def exists(name):
        return re.search(rf"#\[(?:tokio::)?test[^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn {name}\(", sources)

    tiers = REPO / ".config/nextest.toml"
    nightly = re.search(r"^\[profile\.push\]\n.*?\'\'\'(.*?)\'\'\'", tiers.read_text(), re.M | re.S)[1]
    moved = {name.split("::")[-1] for name in re.findall(r"test\(=([\w:]+)\)", nightly)}
    modules = re.search(r"test\(/\^\(([\w|]+)\)::/\)", nightly)[1].split("|")
    whole = "".join((REPO / f"contract-tests/tests/docker/{module}.rs").read_text() for module in modules)
    for name in re.findall(r"`(\w+)`", " ".join(rows)):
        if not exists(name):
            fault(page, f"there is no test {name}")
        if name in moved or f"fn {name}(" in whole:
            fault(page, f"the test {name} is in the nightly tier only")
    for selection in (tiers, REPO / "dist/scripts/engine-suites.sh"):
        for name in re.findall(r"test\(=([\w:]+)\)", selection.read_text()):
            if not exists(name.split("::")[-1]):
                fault(selection, f"there is no test {name}")


def check_references(page):
    """The manual must not refer to internal documents, which its readers do not have."""
    for line in page.read_text().splitlines():
        if re.search(r"\b(DECISIONS|SPEC\.md|DOMAIN\.md|[Ss]pec \d|SPEC \d)", line):
            fault(page, f"refers to an internal document: {line.strip()}")


def check_signals(page):
    """A signal sent with `docker kill` marks a container as stopped by hand: `unless-stopped` no longer starts it again."""
    for command in re.findall(r"\b(?:docker|podman)(?:\s+compose)?\s+kill\b[^`\n]*", page.read_text()):
        fault(page, f"use `exec` with kill in the container, or `restart`, in place of: {command}")


def properties(schema):
    """All property names in a JSON Schema."""
    if isinstance(schema, list):
        return set().union(*map(properties, schema))
    if not isinstance(schema, dict):
        return set()
    return set(schema.get("properties", {})).union(*map(properties, schema.values()))


def check_keys(page, keys):
    for span in re.findall(r"`((?:registry|api|audit|state|monitor|docker_health|notifications|push|services|agents|smtp)"
                           r"(?:\[\])?\.[\w.\[\]]+)`", page.read_text()):
        for part in span.replace("[]", "").split("."):
            # Migration tables mention the old key.
            if part not in keys and span not in ("api.port", "state.redb"):
                fault(page, f"there is no key {span}")


schemas = [json.loads((REPO / f"dist/schema/{name}-config.schema.json").read_text()) for name in ("agent", "warden")]
keys = set().union(*map(properties, schemas))
known = endpoints() | WARDEN | {"GET /openapi.json"}
blocks = 0
for page in PAGES:
    check_links(page)
    check_endpoints(page, known)
    check_commands(page)
    check_keys(page, keys)
    check_references(page)
    check_signals(page)
    for match in BLOCK.finditer(page.read_text()):
        if match["kind"] != "part":
            blocks += 1
            with tempfile.TemporaryDirectory() as folder:
                check_configuration(page, match["kind"], match["text"], pathlib.Path(folder))
    for text in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S):
        check_yaml(page, text)
check_image_sample("agent.json", [])
check_image_sample("warden.json", ["--mode", "warden"])
check_image_sample("warden.postgres.json", ["--mode", "warden"])
check_image_compose()
check_contents()
check_tests(DOCS / "guarantees.md")
for text in faults:
    print(f"error: {text}", file=sys.stderr)
print(f"{len(PAGES)} pages, {blocks} configurations", file=sys.stderr)
sys.exit(1 if faults else 0)
