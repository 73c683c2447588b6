#!/usr/bin/env bash
# Brings the mail server that the delivery tests talk to: aiosmtpd in a Python environment of its own.
# Usage: bring-mail-server.sh FOLDER
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bring_mail_server "$1"
