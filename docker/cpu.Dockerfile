# edgert on any machine's processor. Versions: docker/docker-bake.hcl.
ARG BASE

FROM ${BASE} AS build
ARG EXTRAS
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY edgert edgert
COPY dla dla
COPY pipelines pipelines
COPY configs configs
RUN python -m venv /opt/edgert \
 && /opt/edgert/bin/pip install --no-cache-dir --only-binary=:all: ".[${EXTRAS}]"

FROM ${BASE}
# ssh-keygen verifies signed bundles. Debian keeps only the latest of each package.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openssh-client \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 --groups video edgert \
 && install --directory --owner edgert --group edgert /work /cache
COPY --from=build /opt/edgert /opt/edgert
COPY docker/health.py /opt/edgert/health.py
# One heap for all threads: with one each, glibc keeps what models and cameras leave when they come and go.
ENV PATH=/opt/edgert/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MALLOC_ARENA_MAX=1 \
    EDGERT_CACHE=/cache
WORKDIR /work
USER 10001
HEALTHCHECK --interval=60s --timeout=15s --start-period=5m CMD ["python", "-I", "/opt/edgert/health.py"]
ENTRYPOINT ["edgert"]
CMD ["--help"]
