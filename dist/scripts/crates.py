"""The crates that are linked into a program of this workspace, without build scripts, procedural macros and test dependencies."""

import json
import pathlib
import subprocess

REPO = pathlib.Path(__file__).resolve().parents[2]


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments, "--locked"], cwd=REPO, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked(crate, target):
    """The packages that are linked into crate on target, itself included, in order of their names, as `cargo metadata` has
    them. `depends_on` is the list of IDs of those that a package uses directly."""
    data = json.loads(cargo("metadata", "--format-version=1", "--filter-platform", target))
    # `cargo metadata` lists the packages with the features of the whole workspace; `cargo tree` those of the crate.
    tree = cargo("tree", "-p", crate, "-e", "normal,no-proc-macro", "--target", target, "--prefix", "none", "-f", "{p}")
    wanted = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    found = [one for one in data["packages"] if (one["name"], "v" + one["version"]) in wanted]
    ids = {one["id"] for one in found}
    used = {node["id"]: [one["pkg"] for one in node["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"])]
            for node in data["resolve"]["nodes"]}
    for one in found:
        one["depends_on"] = sorted(ids & set(used[one["id"]]))
    return sorted(found, key=lambda one: (one["name"], one["version"]))


def is_ours(package):
    """Whether a package belongs to this workspace; the others come from a registry."""
    return package["source"] is None
