# A drafting device: package opensled-edge with llama.cpp from source, no torch.
#   docker build --file deploy/docker/edge.Dockerfile --tag opensled-edge:dev .
# For linux/amd64 and linux/arm64; works with BuildKit and with the older builder (Docker 20.10).
# With a digest, name@sha256:..., each build gets the same base: deploy/docker/resolve_base.py tells today's.
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS builder
# compose_check.sh uses this label to remove what it built.
LABEL opensled.stage=builder
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*
# pip has its own environment, so the image does not contain it.
RUN python3 -m venv /tools && python3 -m venv --without-pip /opt/opensled
# Portable by default: AVX2 on amd64, plain ARMv8 on arm64, so that one image runs on a Pi 4 and a Pi 5. For a Pi 5 or
# an Orin alone add -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod. Without OpenMP no library is missing from a slim base.
ARG CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF"
ARG BUILD_JOBS=2
# Settings of pip, for your own wheels, index or certificate authority.
ARG PIP_FIND_LINKS
ARG PIP_INDEX_URL
ARG PIP_CERT
WORKDIR /src
# Versions and hashes. Empty for wheels of your own (PIP_FIND_LINKS), whose hashes it does not have: versions only.
ARG LOCK=deploy/docker/edge.lock
COPY constraints.txt deploy/docker/edge.lock ./
# Before the sources, so that a change to them does not compile llama.cpp again.
RUN export CMAKE_BUILD_PARALLEL_LEVEL=${BUILD_JOBS} \
    && if [ -n "${LOCK}" ]; then set -- --require-hashes --requirement edge.lock; \
        else set -- --constraint constraints.txt llama-cpp-python; fi \
    && /tools/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels "$@"
COPY . .
# "llamacpp,onnx" drafts with ONNX Runtime as well; what the lock does not have comes by version.
ARG EXTRAS=llamacpp
RUN if [ -n "${LOCK}" ]; then \
        /tools/bin/pip --python /opt/opensled/bin/python3 install --no-cache-dir --no-deps --no-index /wheels/*.whl; \
    fi \
    && if [ -n "${LOCK}" ] && [ "${EXTRAS}" = llamacpp ]; then set -- --no-deps; \
        else set -- --find-links /wheels --constraint constraints.txt; fi \
    && /tools/bin/pip --python /opt/opensled/bin/python3 install --no-cache-dir "$@" "./deploy/edge[${EXTRAS}]" \
    && cp deploy/docker/healthy.py /opt/opensled/healthy.py
# llama-cpp-python installs its libraries twice, and numpy its tests.
RUN cd /opt/opensled/lib/python3*/site-packages \
    && rm -rf lib include bin \
    && find numpy -type d -name tests -prune -exec rm -rf {} +

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="opensled-edge" \
    org.opencontainers.image.description="OpenSLED drafting device with an OpenAI-compatible API" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --user-group --create-home opensled
COPY --from=builder /opt/opensled /opt/opensled
# 0.0.0.0 because a container's loopback is unreachable from outside: without keys and TLS `opensled edge`
# then refuses to start, except with --insecure. HEALTH sets what healthy.py tests, in clear text; with TLS:
# "port 8411".
ENV PATH=/opt/opensled/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OPENSLED_NO_CONFIG=1 \
    HEALTH="http 8411" \
    OPENSLED_HTTP=0.0.0.0:8411
USER opensled
WORKDIR /home/opensled
EXPOSE 8411
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=120s --retries=3 \
    CMD python3 /opt/opensled/healthy.py ${HEALTH}
ENTRYPOINT ["opensled"]
CMD ["edge"]
