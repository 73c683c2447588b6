#!/usr/bin/env bash
# Builds the manual with mdBook into target/manual, together with the files that its pages link to, and checks all links.
# Usage: bash dist/scripts/build-manual.sh; needs mdbook (cargo install --locked mdbook)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

have mdbook || die "mdbook is missing: cargo install --locked mdbook"
have python3 || apt_install python3
site="$REPO/target/manual"
rm -rf "$site"
# The same layout as in the repository, so that relative links such as ../samples/full.json work in both.
mkdir -p "$site/dist/docs"
for folder in grafana packaging prometheus samples schema systemd; do cp -r "$REPO/dist/$folder" "$site/dist/"; done
mdbook build "$REPO/dist/docs" --dest-dir "$site/dist/docs" >"$site.log" 2>&1 || die "mdbook could not build the manual: $(cat "$site.log")"
echo '<!doctype html><meta http-equiv="refresh" content="0; url=dist/docs/index.html"><title>Evenkeel</title>' >"$site/index.html"
python3 - "$site" <<'CHECK'
import html.parser
import pathlib
import sys
import urllib.parse

SITE = pathlib.Path(sys.argv[1])


class Page(html.parser.HTMLParser):
    """The links and the link targets of a page."""

    def __init__(self, file):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(file.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.add(attrs.get("id"))
        self.links += [attrs[name] for name in ("href", "src") if attrs.get(name)]


pages = {file: Page(file) for file in (SITE / "dist/docs").rglob("*.html")}
faults = []
for file, page in pages.items():
    # It is served for any URL, so its links are absolute.
    if file.name == "404.html":
        continue
    for link in page.links:
        url = urllib.parse.urlsplit(link)
        if url.scheme or url.netloc:
            continue
        target = (file.parent / urllib.parse.unquote(url.path)).resolve() if url.path else file
        if not target.exists():
            faults.append(f"{file.name}: broken link {link}")
        elif url.fragment and target in pages and urllib.parse.unquote(url.fragment) not in pages[target].ids:
            faults.append(f"{file.name}: {link}: no such heading")
for text in sorted(set(faults)):
    print(f"error: {text}", file=sys.stderr)
sys.exit(1 if faults or len(pages) < 10 else 0)
CHECK
say "manual: $site/index.html"
