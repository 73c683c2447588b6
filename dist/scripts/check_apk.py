"""Checks a package for Alpine Linux without apk: its parts, the checksum of its data, its scripts, its programs.

Usage: check_apk.py FILE. The format: https://wiki.alpinelinux.org/wiki/Apk_spec (version 2: parts compressed one by one).
"""

import hashlib
import io
import pathlib
import sys
import tarfile
import zlib

FILE = pathlib.Path(sys.argv[1])


def parts(content):
    """The compressed parts, each with what it contains."""
    while content:
        decompress = zlib.decompressobj(wbits=31)
        plain = decompress.decompress(content)
        yield content[: len(content) - len(decompress.unused_data)], plain
        content = decompress.unused_data


def faults():
    found = list(parts(FILE.read_bytes()))
    if len(found) != 2:
        yield f"{len(found)} parts instead of two, control and data"
        return
    (_, control), (compressed, data) = found
    # Every part but the last lacks the end of the archive.
    with tarfile.open(fileobj=io.BytesIO(control + bytes(1024))) as archive:
        members = {one.name: archive.extractfile(one).read().decode() for one in archive}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive if one.isfile()}
        modes = {one.name: one.mode for one in archive if one.isfile()}
    info = dict(line.split(" = ", 1) for line in members[".PKGINFO"].splitlines() if " = " in line)
    if info.get("datahash") != hashlib.sha256(compressed).hexdigest():
        yield "the checksum of the data is wrong"
    if info.get("arch") != "x86_64" or not info.get("pkgver", "").endswith("-r1"):
        yield f"architecture {info.get('arch')}, version {info.get('pkgver')}"
    for script in (".post-install", ".post-upgrade", ".pre-deinstall"):
        if not members.get(script, "").startswith("#!/bin/sh\n"):
            yield f"no script {script}, or without an interpreter"
    if any("systemd" in name for name in files):
        yield "units of systemd"
    for name, content in files.items():
        if name.startswith(("usr/bin/", "etc/init.d/")) and modes[name] != 0o755:
            yield f"{name} has mode {modes[name]:o}"
        # An interpreter in the program's headers is a dynamic linker.
        if name.startswith("usr/bin/") and b"/ld-" in content[:4096]:
            yield f"{name} is not static"


problems = list(faults())
for problem in problems:
    print(f"{FILE.name}: {problem}", file=sys.stderr)
sys.exit(1 if problems else 0)
