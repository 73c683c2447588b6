#!/usr/bin/env bash
# Installs the mail server for the delivery tests: aiosmtpd in its own Python environment.
# Usage: bring-mail-server.sh FOLDER
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

bring_mail_server "$1"
