"""Writes the copyright file of a package: the libraries in the program and their licences.

Usage: third_party.py CRATE TARGET, prints to stdout. It covers the crates that are linked into CRATE
on TARGET, without build scripts, procedural macros and test dependencies.
"""

import pathlib
import re
import sys

import crates as workspace

CRATE, TARGET = sys.argv[1:3]
# For crates with a choice of licences, the first of these is used.
PREFERRED = ["MIT", "MIT-0", "0BSD", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Zlib", "Unlicense", "Apache-2.0"]
FILES = re.compile(r"^(licen[cs]e|copying|copyright|notice|unlicense)([._-].*)?$", re.I)
RULE = "-" * 78


def choice(expression):
    """The chosen licence of an SPDX expression; the whole expression if all parts apply."""
    expression = expression.replace("/", " OR ")
    if " AND " in expression:
        return expression
    offered = [one.strip("() ") for one in expression.split(" OR ")]
    return next((one for one in PREFERRED if one in offered), expression)


def names(licence):
    return re.findall(r"[A-Za-z0-9.+-]+", licence.replace(" AND ", " ").replace(" OR ", " ").replace(" WITH ", " "))


def fits(file, licence):
    """Whether a licence file belongs to the chosen licence: LICENSE-MIT to MIT, LICENSE to any."""
    suffix = re.split(r"[._-]", file.name, maxsplit=1)[1:]
    word = suffix[0].lower() if suffix else ""
    kinds = {"mit": "MIT", "apache": "Apache-2.0", "apache2": "Apache-2.0", "bsd": "BSD", "isc": "ISC", "zlib": "Zlib",
             "unlicense": "Unlicense", "boost": "BSL-1.0"}
    kind = next((kinds[key] for key in kinds if word.startswith(key)), None)
    return kind is None or any(name.startswith(kind) for name in names(licence))


def texts(package, licence):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = sorted(file for file in folder.iterdir() if file.is_file() and FILES.match(file.name))
    files += sorted(folder.glob("LICENSES/*.txt"))
    return [shorten(plain(file.read_text(errors="replace"))) for file in files if fits(file, licence)]


def shorten(text):
    """Removes the full text of the GFDL, which one crate includes for its documentation only."""
    head, found, _ = text.partition("                GNU Free Documentation License\n")
    return head + "(on Debian: /usr/share/common-licenses/GFDL-1.2)" if found else text


def plain(text):
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\f", "\n").split("\n")]
    return "\n".join(lines).strip("\n")


def is_apache(text):
    return "Apache License" in text[:400] and "TERMS AND CONDITIONS" in text and len(text) > 8000


def main():
    crates = [one for one in workspace.linked(CRATE, TARGET) if not workspace.is_ours(one)]
    mit = plain((workspace.REPO / "LICENSE-MIT").read_text())
    out = [
        f"{CRATE} is part of Evenkeel, which is available under either of two licences, at your option: the MIT licence,",
        "which follows, or the Apache License, Version 2.0 (on Debian: /usr/share/common-licenses/Apache-2.0, otherwise",
        "https://www.apache.org/licenses/LICENSE-2.0).", "", mit, "", RULE, "",
        f"The program contains {len(crates)} third-party libraries. For libraries with a choice of licences, the chosen one",
        "is listed here. The licence texts follow the list.", "",
    ]
    shared, apache, bare = {}, [], []
    for crate in crates:
        title = f"{crate['name']} {crate['version']}"
        if not crate["license"]:
            sys.exit(f"error: {title} declares no licence")
        licence = choice(crate["license"])
        home = crate["repository"] or f"https://crates.io/crates/{crate['name']}"
        out.append(f"  {title} ({licence}) {home}")
        found = texts(crate, licence)
        if any(is_apache(text) for text in found):
            apache.append(title)
        rest = [text for text in found if not is_apache(text)]
        for text in rest:
            shared.setdefault(text, []).append(title)
        if not found and licence == "MIT":
            # The text is always the same except for the copyright holder.
            owners = ", ".join(crate["authors"]) or f"the authors of {crate['name']}"
            text = re.sub(r"^Copyright.*$", f"Copyright (c) {owners}", mit, count=1, flags=re.M)
            shared.setdefault(text, []).append(title)
        elif not found and licence == "Apache-2.0":
            apache.append(title)
        elif not found:
            bare.append(f"{title} ({licence})")
    if bare:
        sys.exit("error: no licence text for " + ", ".join(bare))
    if apache:
        out += ["", RULE, "", "Under the Apache License, Version 2.0 (see above for its location):", ""]
        out += [f"  {title}" for title in apache]
    for text, users in shared.items():
        out += ["", RULE, "", "For " + ", ".join(dict.fromkeys(users)) + ":", "", text]
    print("\n".join(out))


main()
