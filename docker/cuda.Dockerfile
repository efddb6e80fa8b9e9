# edgert with CUDA: a workstation's GPU, JetPack 6, JetPack 7. Versions: docker/docker-bake.hcl.
ARG BUILD_BASE
ARG RUN_BASE

FROM ${BUILD_BASE} AS build
ARG EXTRAS
ARG PYCUDA
ARG ONNXRUNTIME_GPU=
# Ubuntu keeps only the latest of each package, so that a version written here could not be built next month.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY edgert edgert
COPY dla dla
COPY pipelines pipelines
COPY configs configs
# TensorRT's Python packages are the image's own, hence the system's packages in the environment. Images of TensorRT
# hold pip to a list of versions, which is for what they bring themselves.
ENV PIP_CONSTRAINT= \
    CUDA_ROOT=/usr/local/cuda
RUN python3 -m venv --system-site-packages /opt/edgert \
 && /opt/edgert/bin/pip install --no-cache-dir --only-binary=:all: ".[${EXTRAS}]" \
 && /opt/edgert/bin/pip install --no-cache-dir "pycuda==${PYCUDA}" \
 && if [ -n "${ONNXRUNTIME_GPU}" ]; then \
      /opt/edgert/bin/pip uninstall --yes onnxruntime \
   && /opt/edgert/bin/pip install --no-cache-dir --only-binary=:all: "onnxruntime-gpu==${ONNXRUNTIME_GPU}"; \
    fi

FROM ${RUN_BASE}
# kmod: NVIDIA's GStreamer plugins run lsmod to learn whether the GPU is a Jetson's, and take it for a graphics card
# without: nvv4l2decoder then ends with EINVAL. plugins-bad: h264parse, which stands in front of it. tools and x: windows.
# openssh-client: ssh-keygen verifies signed bundles.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends \
      gir1.2-gst-plugins-base-1.0 gir1.2-gstreamer-1.0 gstreamer1.0-plugins-bad gstreamer1.0-plugins-good \
      gstreamer1.0-tools gstreamer1.0-x kmod openssh-client python3 python3-gi \
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
# Engines that are compiled at the first start take minutes.
HEALTHCHECK --interval=60s --timeout=15s --start-period=30m CMD ["python3", "-I", "/opt/edgert/health.py"]
ENTRYPOINT ["edgert"]
CMD ["--help"]
