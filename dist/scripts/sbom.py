"""Writes the bill of materials of a program: CycloneDX 1.5, as JSON (https://cyclonedx.org/docs/1.5/json/).

Usage: sbom.py CRATE TARGET, prints to stdout. It names the crates that are linked into CRATE on TARGET, with the checksums of
Cargo.lock. The same sources give the same file, whose time is that of SOURCE_DATE_EPOCH, if that is set.
"""

import datetime
import json
import os
import sys
import tomllib
import uuid

import crates

CRATE, TARGET = sys.argv[1:3]


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def component(package, kind, checksums):
    one = {
        "type": kind,
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        # Some old crates have a slash for OR, which SPDX does not know.
        "licenses": [{"expression": package["license"].replace("/", " OR ")}],
        "purl": reference(package),
    }
    if package["description"]:
        one["description"] = " ".join(package["description"].split())
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        one["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        one["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return one


def main():
    packages = crates.linked(CRATE, TARGET)
    lock = tomllib.loads((crates.REPO / "Cargo.lock").read_text())
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in lock["package"]}
    references = {one["id"]: reference(one) for one in packages}
    program = next(one for one in packages if one["name"] == CRATE)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(program, "application", checksums)},
        "components": [component(one, "library", checksums) for one in packages if one is not program],
        "dependencies": [{"ref": reference(one), "dependsOn": [references[used] for used in one["depends_on"]]}
                         for one in packages],
    }
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if epoch:
        time = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
        bill["metadata"]["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ")
    # The number names this bill; a later one of the same sources is the same.
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bill, sort_keys=True))}"
    json.dump(bill, sys.stdout, indent=2)
    print()


main()
