#!/usr/bin/env bash
# Builds the release artifacts of Evenkeel: packages for Debian, RPM-based distributions, Alpine Linux and Arch Linux, an
# archive of the programs, the static program, SBOMs, checksums.
# Usage: bash dist/package.sh [--arch x86_64|aarch64] [--programs FOLDER]
#   --arch       target architecture (default: that of this machine)
#   --programs   packages the programs in this folder, and the static ones in its subfolder static, instead of building them
# The output is written to target/package/out. The build is reproducible (dist/docs/packages.md).
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=scripts/release.sh
. "$(dirname "${BASH_SOURCE[0]}")/scripts/release.sh"
cd "$REPO"

ARCH="$(uname -m)"
PROGRAMS=""
while [ "$#" -gt 0 ]; do
    case "$1" in
    --arch) ARCH="${2:?--arch requires x86_64 or aarch64}" && shift 2 ;;
    --programs) PROGRAMS="$(cd "${2:?--programs requires a folder}" && pwd)" && shift 2 ;;
    *)
        say "usage: bash dist/package.sh [--arch x86_64|aarch64] [--programs FOLDER]"
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

parts_of() {
    case "$1" in
    evenkeel) echo "agent warden" ;;
    *) echo "${1#evenkeel-}" ;;
    esac
}

# Adapts a unit file to the program of a package. The package creates the user, so the unit needs no dynamic one.
unit() {
    local package="$1" part="$2"
    case "$package" in
    evenkeel) sed 's|/usr/local/bin/|/usr/bin/|' ;;
    *) sed "s|/usr/local/bin/evenkeel\( --mode warden\)\{0,1\}|/usr/bin/$package|; s|man:evenkeel(|man:$package(|" ;;
    esac <"dist/systemd/evenkeel-$part.service" | sed "s|^DynamicUser=yes|User=evenkeel-$part|"
}

# Adapts the service of OpenRC in the same way.
openrc_service() {
    case "$1" in
    evenkeel) sed 's|/usr/local/bin/|/usr/bin/|' ;;
    *) sed "s|/usr/local/bin/evenkeel$|/usr/bin/$1|; s|\"--mode warden\"|\"\"|" ;;
    esac <dist/openrc/evenkeel
}

# stage PACKAGE: prepares everything that its packages contain: in `root` what all of them have, in `systemd` and `openrc` what
# depends on the service manager and the C library.
stage() {
    local package="$1" folder="$STAGE/$1" root="$STAGE/$1/root" systemd="$STAGE/$1/systemd" openrc="$STAGE/$1/openrc"
    local files="" part file
    rm -rf "$folder"
    mkdir -p "$folder/completions" "$root/usr/share/doc/$package/examples" "$root/usr/share/evenkeel/default" \
        "$root/usr/share/man/man1" "$root/usr/share/bash-completion/completions" "$root/usr/share/fish/vendor_completions.d" \
        "$systemd"/usr/{bin,lib/{systemd/system,tmpfiles.d,sysusers.d}} "$openrc"/{etc/{init,logrotate}.d,usr/bin}
    for part in $(parts_of "$package"); do
        unit "$package" "$part" >"$systemd/usr/lib/systemd/system/evenkeel-$part.service"
        cp "dist/packaging/tmpfiles.d/evenkeel-$part.conf" "$systemd/usr/lib/tmpfiles.d/"
        openrc_service "$package" >"$openrc/etc/init.d/evenkeel-$part"
        cp "dist/openrc/evenkeel-$part.logrotate" "$openrc/etc/logrotate.d/evenkeel-$part"
        cp "dist/schema/$part-config.schema.json" "$root/usr/share/evenkeel/"
        file="dist/packaging/sysusers.d/evenkeel-$part.conf"
        [ ! -e "$file" ] || cp "$file" "$systemd/usr/lib/sysusers.d/"
        case "$part" in
        agent)
            files="$files config.json agent.env"
            cp dist/samples/{full,minimal}.json dist/systemd/{read-homes,snapshots}.conf "$root/usr/share/doc/$package/examples/"
            ;;
        warden)
            files="$files warden.json warden.env"
            cp dist/samples/warden.json "$root/usr/share/doc/$package/examples/"
            ;;
        esac
    done
    for file in $files; do cp "dist/packaging/etc/$file" "$root/usr/share/evenkeel/default/"; done
    rmdir "$systemd/usr/lib/sysusers.d" 2>/dev/null || true
    for file in dist/packaging/{deb,rpm,apk,arch}/*.sh; do
        part="$folder/scripts/${file#dist/packaging/}"
        mkdir -p "${part%/*}"
        sed -e "s/@PARTS@/$(parts_of "$package" | sed 's/[a-z]*/evenkeel-&/g')/" -e "s/@FILES@/${files# }/" \
            -e "/@WARN_OF_DEPLOYMENT@/{r dist/packaging/warn-of-deployment.sh" -e "d}" "$file" >"$part"
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
    cp "$STAGE/pages/completions/zsh/_$package" "$folder/completions/"
    cp "$PROGRAMS/$package" "$systemd/usr/bin/"
    cp "$STATIC_PROGRAMS/$package" "$openrc/usr/bin/"
    python3 dist/scripts/third_party.py "$package" "$TARGET" >"$folder/copyright"
    cp -r dist/docs "$root/usr/share/doc/$package/manual"
    rm "$root/usr/share/doc/$package/manual"/{SUMMARY.md,book.toml}
    gzip -9n <CHANGELOG.md >"$root/usr/share/doc/$package/changelog.gz"
    gzip -9n <"$STAGE/sbom/$package.cdx.json" >"$root/usr/share/doc/$package/sbom.cdx.json.gz"
    gzip -9n >"$folder/changelog.Debian.gz" <<CHANGELOG
$package ($VERSION-1) unstable; urgency=medium

  * Version $VERSION; see changelog.gz for the changes.

 -- Evenkeel maintainers <maintainers@users.noreply.github.com>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGELOG
    printf '%s\n' "# The package is not in Debian, so no bug asks for it." initial-upload-closes-no-bugs >"$folder/lintian"
    [ "$package" = evenkeel-warden ] || printf '%s\n' "# yaml-rust2 is a port of libyaml to Rust, and has its messages." \
        "embedded-library libyaml *" >>"$folder/lintian"
    # Fixed timestamps and permissions, so that the packages only depend on the sources.
    find "$folder" -type d -exec chmod 755 {} +
    find "$folder" -type f -exec chmod 644 {} +
    chmod 755 "$folder"/*/usr/bin/* "$openrc"/etc/init.d/*
    find "$folder" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

AGENT_TEXT="The agent watches image registries and redeploys compose projects when a tag
points to a new image. Every new image is on probation until its containers
have proven themselves; a failed image is rolled back and not deployed again.
The agent restarts failed containers, and provides a dashboard, metrics and
notifications."
WARDEN_TEXT="The warden collects the events of all agents of a fleet in one live
dashboard, and reports agents that are offline."

# make_package PACKAGE FORMAT: writes a package of what stage has prepared. nFPM takes the timestamps from SOURCE_DATE_EPOCH.
make_package() (
    export NAME="$1" VERSION DESCRIPTION OTHER_1="" OTHER_2="" NOT_1 NOT_2 ENGINE="" COMPOSE="" COPYRIGHT ZSH_COMPLETIONS ARCH
    case "$1" in
    evenkeel)
        OTHER_1=evenkeel-agent OTHER_2=evenkeel-warden
        DESCRIPTION="Keeps container services up to date and rolls back bad images
$AGENT_TEXT

$WARDEN_TEXT

This package contains both."
        ;;
    evenkeel-agent)
        OTHER_1=evenkeel
        DESCRIPTION="Keeps container services up to date and rolls back bad images
$AGENT_TEXT"
        ;;
    evenkeel-warden)
        OTHER_1=evenkeel
        DESCRIPTION="Dashboard for a fleet of Evenkeel agents
$WARDEN_TEXT"
        ;;
    esac
    COPYRIGHT="/usr/share/licenses/$1/copyright" ZSH_COMPLETIONS=/usr/share/zsh/site-functions
    case "$2" in
    deb) COPYRIGHT="/usr/share/doc/$1/copyright" ZSH_COMPLETIONS=/usr/share/zsh/vendor-completions ;;
    esac
    case "$1:$2" in
    evenkeel-warden:*) ;;
    *:deb)
        ENGINE="docker.io | docker-ce | podman"
        COMPOSE="docker-compose-plugin (>= 2.20) | docker-compose-v2 (>= 2.20) | docker-compose (>= 2.20)"
        ;;
    *:rpm) COMPOSE=docker-compose-plugin ;;
    *:archlinux) ENGINE=docker COMPOSE=docker-compose ;;
    # apk has no recommendations.
    *:apk) COMPOSE=docker-cli-compose ;;
    esac
    # Of apk: a conflict is a dependency, and a description is one line.
    NOT_1="${OTHER_1:+!$OTHER_1}" NOT_2="${OTHER_2:+!$OTHER_2}"
    [ "$2" != apk ] || DESCRIPTION="${DESCRIPTION%%$'\n'*}"
    ARCH="$(nfpm_arch "$ARCH")"
    cd "$STAGE/$1"
    nfpm package --config "$REPO/dist/packaging/nfpm.yaml" --packager "$2" --target "$OUT/" >/dev/null
)

# nfpm_arch ARCH: the architecture as nFPM, that is Go, calls it.
nfpm_arch() {
    case "$1" in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    esac
}

# --- building --------------------------------------------------------------------------------------------

bring_rust
have python3 || apt_install python3
bring_tool nfpm nfpm || die "nFPM is missing and can't be installed from here"
if [ -z "$PROGRAMS" ]; then
    bring_zig
    for libc in gnu musl; do
        timed "building the programs with $libc" build_programs "$ARCH" "$libc" || die "see above"
    done
    PROGRAMS="$(programs_of "$ARCH")"
    STATIC_PROGRAMS="$(programs_of "$ARCH" musl)"
else
    STATIC_PROGRAMS="$PROGRAMS/static"
fi
rm -rf "$OUT"
mkdir -p "$OUT"
rm -rf "$STAGE/pages"
# shellcheck disable=SC2086  # a command with arguments, or nothing
timed "manual pages and completions" ${EVENKEEL_BUILD_WITH:-} cargo run --locked -p evenkeel --example pages -- "$STAGE/pages" ||
    die "the manual pages could not be generated"
mkdir -p "$STAGE/sbom"
for package in $PACKAGES; do
    say "packages of $package"
    python3 dist/scripts/sbom.py "$package" "$TARGET" >"$STAGE/sbom/$package.cdx.json"
    cp "$STAGE/sbom/$package.cdx.json" "$OUT/$package-$VERSION-$ARCH.cdx.json"
    stage "$package"
    for format in deb rpm apk archlinux; do make_package "$package" "$format"; done
done
say "archive"
ARCHIVE="evenkeel-$VERSION-$ARCH-linux"
rm -rf "${STAGE:?}/$ARCHIVE"
mkdir -p "$STAGE/$ARCHIVE"
cp "$PROGRAMS"/evenkeel "$PROGRAMS"/evenkeel-agent "$PROGRAMS"/evenkeel-warden README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$STAGE/$ARCHIVE/"
cp -r dist/samples dist/schema dist/systemd dist/openrc dist/prometheus dist/grafana "$STAGE/pages/man" "$STAGE/pages/completions" "$STAGE/$ARCHIVE/"
cp "$STAGE/evenkeel/copyright" "$STAGE/$ARCHIVE/THIRD-PARTY"
tar -C "$STAGE" --sort=name --owner=0 --group=0 --numeric-owner --mode=go-w --mtime="@$SOURCE_DATE_EPOCH" -c "$ARCHIVE" |
    gzip -9n >"$OUT/$ARCHIVE.tar.gz"
install -m 755 "$STATIC_PROGRAMS/evenkeel" "$OUT/evenkeel-$VERSION-$ARCH-static"
(cd "$OUT" && sha256sum -- * >"$STAGE/SHA256SUMS" && mv "$STAGE/SHA256SUMS" SHA256SUMS)
say "written to $OUT:"
cat "$OUT/SHA256SUMS"
