# The agent, with the docker and compose clients that it uses. Built by dist/images.sh, which prepares the build context.
ARG BASE=debian:trixie-slim
FROM ${BASE}
# An alternative Debian mirror for the build.
ARG APT_SOURCES=""
RUN set -eu; \
    if [ -n "$APT_SOURCES" ]; then printf '%s\n' "$APT_SOURCES" >/etc/apt/sources.list; rm -f /etc/apt/sources.list.d/*; fi; \
    apt-get update -q; \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends ca-certificates docker-cli docker-compose tini; \
    apt-get clean; \
    rm -rf /var/lib/apt/lists/*; \
    docker compose version; \
    mkdir -p /etc/evenkeel /var/lib/evenkeel /var/log/evenkeel; \
    chown 10001:10001 /var/lib/evenkeel /var/log/evenkeel
COPY evenkeel /usr/bin/evenkeel
COPY agent.json /etc/evenkeel/config.json
# Not root. Access to the engine's socket requires its group: docker run --group-add, or group_add in compose.
USER 10001:10001
ENV HOME=/var/lib/evenkeel
VOLUME ["/var/lib/evenkeel", "/var/log/evenkeel"]
EXPOSE 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=15s --start-period=10s --retries=3 CMD ["evenkeel", "health"]
# What a command that was cut off leaves behind becomes a child of the first process, which tini reaps. It passes all signals on.
# -s: also where it is not the first one, with an init of the engine or the host's processes.
ENTRYPOINT ["tini", "-s", "--", "evenkeel"]
