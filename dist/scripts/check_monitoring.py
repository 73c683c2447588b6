"""Compares what the alert rules, the dashboard and the manual name with what the programs expose.

Usage: check_monitoring.py REPO WORK; WORK holds agent.metrics and warden.metrics as they were scraped, and gets
queries.yml, a rule file with every query of the dashboard for promtool to parse.
"""

import json
import pathlib
import re
import sys

import yaml

REPO, WORK = map(pathlib.Path, sys.argv[1:3])
# These are shown, with these labels, only for containers that were measured, which takes an engine, while an update waits,
# for images that a fleet runs, or with PostgreSQL as store. That the name is right is read off the source instead.
MEASURED = {
    "evenkeel_update_waiting": {"service", "gate"},
    "evenkeel_service_cpu_cores": {"service"},
    "evenkeel_service_memory_usage_bytes": {"service"},
    "evenkeel_service_memory_limit_bytes": {"service"},
    "evenkeel_warden_behind_machines": {"image"},
    "evenkeel_warden_behind_seconds": {"image"},
    "evenkeel_warden_store_clock_skew_seconds": set(),
}
# Made by Prometheus itself.
SYNTHETIC = {"up", "ALERTS"}
NAME = re.compile(r"\b(?:evenkeel|docker_daemon|process)_[a-z0-9_]+\b")

faults = []


def fault(text):
    faults.append(text)


def exposed(file):
    """Names and label names by metric, as scraped; histograms by the names of their series."""
    names = {}
    for line in (WORK / file).read_text().splitlines():
        match = re.match(r"([a-z_:][a-z0-9_:]*)(?:\{(.*)\})? ", line)
        if match and not line.startswith("#"):
            labels = set(re.findall(r'([a-z_]+)="', match[2] or ""))
            names.setdefault(match[1], set()).update(labels)
    return names


def documented(text):
    """Names in the first column of the tables of the manual's page."""
    return set(re.findall(r"^\| `([a-z0-9_]+)`", text, re.M))


def rules():
    """The alerts of the rule file as (name, expression, annotations)."""
    text = (REPO / "dist/prometheus/evenkeel.rules.yml").read_text()
    for block in text.split("      - alert: ")[1:]:
        name, _, rest = block.partition("\n")
        expression = re.search(r"^        expr: (.*?)(?=^        (?:for|labels): )", rest, re.S | re.M)[1]
        yield name.strip(), expression, rest


def queries(dashboard):
    """Every query as (panel, text)."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.sub(r"label_values\((.*), *\w+\)", r"\1", variable["query"]["query"])


def plain(query):
    """The query with Grafana's own variables replaced by values."""
    for name, value in (("$__rate_interval", "5m"), ("$__interval", "1m"), ("$__range", "1h")):
        query = query.replace(name, value)
    return query.replace("$instance", ".*").replace("$service", ".*")


shown = exposed("agent.metrics")
for name, labels in exposed("warden.metrics").items():
    shown.setdefault(name, set()).update(labels)
for name, labels in MEASURED.items():
    if name in shown:
        continue
    program = "warden" if name.startswith("evenkeel_warden_") else "agent"
    if not any(f'"{name}"' in file.read_text() for file in (REPO / program / "src").rglob("*.rs")):
        fault(f"{name} is neither exposed nor named in {program}/src")
    shown[name] = labels


def check_names(text, where):
    """Each metric, and each label that a selector asks for."""
    bare = re.sub(r'"[^"]*"', '""', text)
    for name in NAME.findall(bare):
        if name not in shown:
            fault(f"{where}: no program exposes {name}")
    for name, selector in re.findall(r"\b([a-z_]+)\{([^}]*)\}", bare):
        for label in re.findall(r"([a-z_]+) *(?:=|!=|=~|!~)", selector):
            if name in shown and label not in shown[name] | {"instance", "job", "le"}:
                fault(f"{where}: {name} has no label {label}")


runbook = (REPO / "dist/docs/alerts.md").read_text()
headings = {line[3:].strip() for line in runbook.splitlines() if line.startswith("## ")}
tests = yaml.safe_load((REPO / "dist/prometheus/evenkeel.rules.test.yml").read_text())["tests"]
fires, keeps_quiet = set(), set()
for test in tests:
    # The alerts that fire, at each time that the test looks at.
    looks = [set(re.findall(r'alertname="(\w+)"', str(look["exp_samples"]))) for look in test.get("promql_expr_test", [])]
    named = set().union(*looks)
    fires |= named
    keeps_quiet |= {name for name in named if not all(name in look for look in looks)}
alerts = set()
for name, expression, rest in rules():
    alerts.add(name)
    check_names(expression, name)
    for key in ("summary:", "description:", f"/alerts.html#{name.lower()}\n"):
        if key not in rest:
            fault(f"{name}: {key.strip()} is missing")
    if name not in headings:
        fault(f"{name}: dist/docs/alerts.md has no section of this name")
    if name not in fires:
        fault(f"{name}: no test in which it fires")
    if name not in keeps_quiet:
        fault(f"{name}: no test in which it does not fire yet, or any more")
for heading in headings - alerts:
    if heading.startswith("Evenkeel"):
        fault(f"dist/docs/alerts.md: there is no alert {heading}")

dashboard = json.loads((REPO / "dist/grafana/evenkeel.json").read_text())
rendered = ["groups:", "  - name: dashboard", "    rules:"]
for number, (place, query) in enumerate(queries(dashboard)):
    check_names(plain(query), f"panel {place!r}")
    rendered += [f"      - record: query{number}", f"        expr: {json.dumps(plain(query))}"]
(WORK / "queries.yml").write_text("\n".join(rendered) + "\n")
identifiers = [panel["id"] for panel in dashboard["panels"]]
if len(identifiers) != len(set(identifiers)):
    fault("two panels of the dashboard have one id")
for panel in dashboard["panels"]:
    if panel["type"] != "row" and not panel["description"]:
        fault(f"panel {panel['title']!r} has no description")
for text in re.findall(r'"uid": "([^"]*)"', json.dumps(dashboard["panels"])):
    if text != "${datasource}":
        fault(f"the dashboard names the data source {text!r} instead of its variable")

# The manual's page of metrics has each one exactly once, histograms by their base name.
page = documented((REPO / "dist/docs/metrics.md").read_text())
base = {re.sub(r"_(bucket|sum|count)$", "", name) if "duration_seconds" in name else name for name in shown}
base = {name for name in base if not name.startswith("process_")}
for name in sorted(base - page):
    fault(f"dist/docs/metrics.md does not have {name}")
for name in sorted(page - base - SYNTHETIC):
    if NAME.fullmatch(name) and not name.startswith("process_"):
        fault(f"dist/docs/metrics.md has {name}, which no program exposes")

for text in faults:
    print(f"error: {text}", file=sys.stderr)
sys.exit(1 if faults else 0)
