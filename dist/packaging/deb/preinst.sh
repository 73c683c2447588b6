#!/bin/sh
set -e
# Tells postinst that nothing ran before: after "remove", dpkg gives it a version as it does for an upgrade. A reboot in between
# removes the mark, and starts what is enabled.
[ "$1" != install ] || touch "/run/$DPKG_MAINTSCRIPT_PACKAGE.installed" || true
