# syntax=docker/dockerfile:1
# One target a component: docker build --target gateway -t ridgeline-gateway .
#   gateway, router, operator   no compiler, no torch
#   worker-cpu, worker-cuda     gcc and the Python headers, because kernels are built for the machine at start
#
# Packages come at the versions and hashes of requirements/ci.lock; torch by version (requirements/torch.txt). Which
# build of torch that is, and from where packages come, is for a pip.conf to say, given as a build secret:
#   docker build --target worker-cpu --secret id=pip_conf,src=pip-cpu.conf -t ridgeline-worker-cpu .
# Without one, torch is the CUDA build, which runs on a CPU as well and is merely large.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
# SAFEPATH: the folder operator/ of a checkout in the working directory never shadows the standard library.
ENV PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
RUN groupadd --gid 10001 ridgeline \
 && useradd --uid 10001 --gid 10001 --no-log-init --create-home --home-dir /home/ridgeline ridgeline

# ---- build: the wheel, and an installer that gives each component its own environment -------------------------

FROM base AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    python -m venv /venv \
 && /venv/bin/python -m pip install --quiet --upgrade 'pip>=26.3'
COPY requirements requirements
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY gateway gateway
COPY router router
COPY worker worker
COPY operator operator
COPY tools tools
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    /venv/bin/python -m pip wheel --quiet --no-deps --wheel-dir /dist .
# Usage: install-component EXTRA. The lock's hashes hold for every package; the wheel is held to the one just built.
COPY --chmod=755 <<'SCRIPT' /usr/local/bin/install-component
#!/bin/sh
set -eu
wheel=$(echo /dist/ridgeline-*.whl)
digest=$(sha256sum "$wheel" | cut -d ' ' -f 1)
/venv/bin/python -m pip install --quiet --only-binary :all: --constraint requirements/ci.lock \
  "ridgeline[$1] @ file://$wheel#sha256=$digest"
/venv/bin/python -m pip check
/venv/bin/python -m pip uninstall --quiet --yes pip
SCRIPT

FROM build AS gateway-environment
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf install-component gateway

FROM build AS router-environment
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf install-component router

FROM build AS operator-environment
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf install-component operator

FROM build AS worker-environment
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf \
    /venv/bin/python -m pip install --quiet --requirement requirements/torch.txt \
 && install-component worker

# ---- components -----------------------------------------------------------------------------------------------

FROM base AS component
ENV PATH=/venv/bin:$PATH
WORKDIR /home/ridgeline

FROM component AS gateway
COPY --from=gateway-environment /venv /venv
USER 10001:10001
ENTRYPOINT ["python", "-m", "ridgeline_gateway"]

FROM component AS router
COPY --from=router-environment /venv /venv
USER 10001:10001
ENTRYPOINT ["python", "-m", "ridgeline_router"]

FROM component AS operator
COPY --from=operator-environment /venv /venv
USER 10001:10001
ENTRYPOINT ["python", "-m", "ridgeline_operator"]

# The base image brings Python's headers; libgomp is what the compiled CPU kernels and torch share.
FROM component AS worker
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev libgomp1 \
 && rm -rf /var/lib/apt/lists/*
COPY --from=worker-environment /venv /venv
# Several processes share the cores: spinning OpenMP threads would starve them.
ENV OMP_WAIT_POLICY=passive
USER 10001:10001
ENTRYPOINT ["python", "-m", "ridgeline_worker"]

FROM worker AS worker-cpu

# The driver comes from the node, through the NVIDIA container runtime; everything else is in torch's wheels.
FROM worker AS worker-cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
