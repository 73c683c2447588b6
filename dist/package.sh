#!/usr/bin/env bash
# Builds the release artifacts of Evenkeel: .deb and .rpm packages, an archive of the programs, SBOMs, checksums.
# Usage: bash dist/package.sh [--arch x86_64|aarch64] [--programs FOLDER] [--static]
#   --arch       target architecture (default: that of this machine)
#   --programs   packages the programs in this folder instead of building them
#   --static     also builds the static program for the container images
# The output is written to target/package/out. The build is reproducible (dist/docs/packages.md).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=scripts/release.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/release.sh"
cd "$REPO"

ARCH="$(uname -m)"
PROGRAMS=""
STATIC=""
while [ "$#" -gt 0 ]; do
    case "$1" in
    --arch) ARCH="${2:?--arch requires x86_64 or aarch64}" && shift 2 ;;
    --programs) PROGRAMS="$(cd "${2:?--programs requires a folder}" && pwd)" && shift 2 ;;
    --static) STATIC=1 && shift ;;
    *)
        say "usage: bash dist/package.sh [--arch x86_64|aarch64] [--programs FOLDER] [--static]"
        exit 2
        ;;
    esac
done
TARGET="$(rust_target "$ARCH")"
STAGE="$REPO/target/package"
OUT="$STAGE/out"
VERSION="$(version)"

# --- package contents ------------------------------------------------------------------------------------

PACKAGES="evenkeel-agent evenkeel-warden evenkeel"

crate_of() {
    case "$1" in
    evenkeel) echo dist ;;
    *) echo "${1#evenkeel-}" ;;
    esac
}

parts_of() {
    case "$1" in
    evenkeel) echo "agent warden" ;;
    *) echo "${1#evenkeel-}" ;;
    esac
}

# Adapts a unit file to the program of a package.
unit() {
    local package="$1" part="$2"
    case "$package" in
    evenkeel) sed 's|/usr/local/bin/|/usr/bin/|' ;;
    *) sed "s|/usr/local/bin/evenkeel\( --mode warden\)\{0,1\}|/usr/bin/$package|" ;;
    # The package creates the user, so the unit needs no dynamic one.
    esac <"dist/systemd/evenkeel-$part.service" | sed "s|^DynamicUser=yes|User=evenkeel-$part|"
}

# stage PACKAGE: prepares everything that its packages contain besides the program.
stage() {
    local package="$1" folder="$STAGE/$1" root="$STAGE/$1/root" part file
    rm -rf "$folder"
    mkdir -p "$folder"/{units,etc,rpm,completions/zsh} "$root/usr/share/doc/$package/examples" "$root/usr/share/evenkeel" \
        "$root/usr/share/man/man1" "$root/usr/lib/tmpfiles.d" "$root/usr/lib/sysusers.d" \
        "$root/usr/share/bash-completion/completions" "$root/usr/share/fish/vendor_completions.d"
    for part in $(parts_of "$package"); do
        unit "$package" "$part" >"$folder/units/evenkeel-$part.service"
        cp "dist/packaging/tmpfiles.d/evenkeel-$part.conf" "$root/usr/lib/tmpfiles.d/"
        cp "dist/schema/$part-config.schema.json" "$root/usr/share/evenkeel/"
        file="dist/packaging/sysusers.d/evenkeel-$part.conf"
        [ ! -e "$file" ] || cp "$file" "$root/usr/lib/sysusers.d/"
        case "$part" in
        agent)
            cp dist/packaging/etc/{config.json,agent.env} "$folder/etc/"
            cp dist/samples/{full,minimal}.json dist/systemd/read-homes.conf "$root/usr/share/doc/$package/examples/"
            ;;
        warden)
            cp dist/packaging/etc/{warden.json,warden.env} "$folder/etc/"
            cp dist/samples/warden.json "$root/usr/share/doc/$package/examples/"
            ;;
        esac
    done
    rmdir "$root/usr/lib/sysusers.d" 2>/dev/null || true
    for file in post preun postun; do
        sed "s/@PARTS@/$(parts_of "$package" | sed 's/[a-z]*/evenkeel-&/g')/" "dist/packaging/rpm/$file.sh" >"$folder/rpm/$file.sh"
    done
    for file in "$STAGE/pages/man/$package.1" "$STAGE/pages/man/$package"-[a-z]*.1; do
        # Skip pages of other programs with the same prefix: evenkeel-agent.1 does not belong to evenkeel, and
        # evenkeel-warden-config.1 (of "evenkeel warden-config") does not belong to evenkeel-warden.
        case "$package:${file##*/}" in
        evenkeel:evenkeel-agent*.1 | evenkeel:evenkeel-warden.1 | evenkeel:evenkeel-warden-warden-config.1) continue ;;
        evenkeel-warden:evenkeel-warden-config.1) continue ;;
        esac
        [ ! -e "$file" ] || gzip -9n <"$file" >"$root/usr/share/man/man1/${file##*/}.gz"
    done
    cp "$STAGE/pages/completions/bash/$package" "$root/usr/share/bash-completion/completions/"
    cp "$STAGE/pages/completions/fish/$package.fish" "$root/usr/share/fish/vendor_completions.d/"
    cp "$STAGE/pages/completions/zsh/_$package" "$folder/completions/zsh/"
    python3 dist/scripts/third_party.py "$package" "$TARGET" >"$folder/copyright"
    gzip -9n <CHANGELOG.md >"$root/usr/share/doc/$package/changelog.gz"
    gzip -9n <"$STAGE/sbom/$package.cdx.json" >"$root/usr/share/doc/$package/sbom.cdx.json.gz"
    cat >"$folder/changelog.Debian" <<CHANGELOG
$package ($VERSION-1) unstable; urgency=medium

  * Version $VERSION; see changelog.gz for the changes.

 -- Evenkeel maintainers <maintainers@users.noreply.github.com>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGELOG
    # Fixed timestamps and permissions, so that the packages only depend on the sources.
    find "$folder" -type d -exec chmod 755 {} +
    find "$folder" -type f -exec chmod 644 {} +
    find "$folder" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# sbom: writes the SBOM of each program, as CycloneDX 1.5, to STAGE/sbom.
sbom() {
    local package crate
    mkdir -p "$STAGE/sbom"
    cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$TARGET" --no-build-deps \
        --override-filename evenkeel-sbom || die "cargo-cyclonedx could not describe the programs"
    for package in $PACKAGES; do
        crate="$(crate_of "$package")"
        # Remove the local path of the sources, which differs between machines.
        sed "s|file://$REPO/|file:///evenkeel/|g" "$crate/evenkeel-sbom.json" >"$STAGE/sbom/$package.cdx.json"
        rm "$crate/evenkeel-sbom.json"
    done
    rm -f {common,contract-tests}/evenkeel-sbom.json
}

# --- building --------------------------------------------------------------------------------------------

bring_rust
have python3 || apt_install python3
bring_cargo_tool deb || die "cargo-deb is missing and can't be installed from here"
bring_cargo_tool generate-rpm || die "cargo-generate-rpm is missing and can't be installed from here"
bring_cargo_tool cyclonedx || die "cargo-cyclonedx is missing and can't be installed from here"
if [ -z "$PROGRAMS" ]; then
    bring_zig
    timed "building the programs for $TARGET" build_programs "$ARCH" || die "see above"
    PROGRAMS="$(programs_of "$ARCH")"
fi
rm -rf "$OUT"
mkdir -p "$OUT"
rm -rf "$STAGE/pages"
# shellcheck disable=SC2086  # a command with arguments, or nothing
timed "manual pages and completions" ${EVENKEEL_BUILD_WITH:-} cargo run --locked -p evenkeel --example pages -- "$STAGE/pages" ||
    die "the manual pages could not be generated"
say "bill of materials"
sbom
# cargo-deb and cargo-generate-rpm expect the programs here.
BUILT="$STAGE/built/$TARGET/release"
mkdir -p "$BUILT"
for package in $PACKAGES; do
    install -m 755 "$PROGRAMS/$package" "$BUILT/$package"
    touch -d "@$SOURCE_DATE_EPOCH" "$BUILT/$package"
done
for package in $PACKAGES; do
    say "packages of $package"
    stage "$package"
    CARGO_TARGET_DIR="$STAGE/built" cargo deb --quiet --no-build --no-strip --target "$TARGET" \
        --manifest-path "$(crate_of "$package")/Cargo.toml" --output "$OUT/"
    CARGO_TARGET_DIR="$STAGE/built" cargo generate-rpm --auto-req builtin --target "$TARGET" --target-dir "$STAGE/built" \
        --package "$(crate_of "$package")" --source-date "$SOURCE_DATE_EPOCH" --output "$OUT/"
    cp "$STAGE/sbom/$package.cdx.json" "$OUT/$package-$VERSION-$ARCH.cdx.json"
done
say "archive"
ARCHIVE="evenkeel-$VERSION-$ARCH-linux"
rm -rf "${STAGE:?}/$ARCHIVE"
mkdir -p "$STAGE/$ARCHIVE"
cp "$BUILT"/evenkeel "$BUILT"/evenkeel-agent "$BUILT"/evenkeel-warden README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$STAGE/$ARCHIVE/"
cp -r dist/samples dist/schema dist/systemd dist/prometheus dist/grafana "$STAGE/pages/man" "$STAGE/pages/completions" "$STAGE/$ARCHIVE/"
cp "$STAGE/evenkeel/copyright" "$STAGE/$ARCHIVE/THIRD-PARTY"
tar -C "$STAGE" --sort=name --owner=0 --group=0 --numeric-owner --mode=go-w --mtime="@$SOURCE_DATE_EPOCH" -c "$ARCHIVE" |
    gzip -9n >"$OUT/$ARCHIVE.tar.gz"
if [ -n "$STATIC" ]; then
    timed "building the static program" build_static || die "see above"
    install -m 755 "$(static_program)" "$OUT/evenkeel-$VERSION-$ARCH-static"
fi
(cd "$OUT" && sha256sum -- * >"$STAGE/SHA256SUMS" && mv "$STAGE/SHA256SUMS" SHA256SUMS)
say "written to $OUT:"
cat "$OUT/SHA256SUMS"
