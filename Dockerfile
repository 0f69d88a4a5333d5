# The sidecar's image: exeatd, static, and nothing that it does not use. `make image` builds it.
FROM scratch
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="exeat" \
      org.opencontainers.image.description="Decides what a sandboxed agent may reach on the network" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
ADD rootfs.tar /
# Where what is in force outlives a restart.
VOLUME /var/lib/exeat
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s --retries=2 CMD ["/exeatd", "healthcheck"]
ENTRYPOINT ["/exeatd"]
