# The warden: a static program and the CA certificates. Built by dist/images.sh, which prepares the build context.
FROM scratch
COPY evenkeel /evenkeel
COPY ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# A volume inherits the owner of the folder on which it is mounted.
COPY --chown=10002:10002 state /var/lib/evenkeel-warden
COPY warden.json /etc/evenkeel/warden.json
USER 10002:10002
VOLUME ["/var/lib/evenkeel-warden"]
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=15s --start-period=10s --retries=3 CMD ["/evenkeel", "health", "--config", "/etc/evenkeel/warden.json"]
ENTRYPOINT ["/evenkeel", "--mode", "warden"]
