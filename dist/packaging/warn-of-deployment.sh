# A part of all scripts that run before the removal of a package (dist/package.sh puts it there).
# Only its journal knows what it has stopped for a deployment.
program=evenkeel
if command -v evenkeel-agent >/dev/null; then program=evenkeel-agent; fi
if [ "$part" = evenkeel-agent ] && timeout 10 "$program" status --json 2>/dev/null | grep -q '"deploying": *true'; then
    echo "A deployment is in progress. What it has stopped may stay stopped: before you remove the state of the agent," \
        "start it again until \`$program status\` shows no deployment." >&2
fi
