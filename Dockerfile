# The gateway's image is the last stage; `--target sbom` and `--target merchants` make the others.
ARG PYTHON=3.11-slim-bookworm
# sha256:…, as the registry says: then the base is these bytes, whatever the tag is moved to.
ARG PYTHON_DIGEST

# Everything that builds stays in this stage: pip, setuptools, uv, their caches.
FROM python:${PYTHON}${PYTHON_DIGEST:+@$PYTHON_DIGEST} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    UV_NO_CACHE=1 \
    UV_COMPILE_BYTECODE=1
WORKDIR /src
# What builds the package (by its hash as well: in isolation pip would fetch the newest there is),
# and uv, which installs in a tenth of pip's time.
COPY deploy/image/build.txt ./
RUN pip install --require-hashes --only-binary=:all: -r build.txt
# Without pip, because the venv is what the last stage gets.
RUN python -m venv --without-pip /venv
# The dependencies first: they change seldom, so this layer is kept from build to build. Wheels
# only: there is no compiler here, and a hash that fits a source archive would ask for one.
COPY requirements.txt ./
RUN uv pip install --python /venv/bin/python --require-hashes --only-binary=:all: -r requirements.txt
COPY pyproject.toml README.md gcelery.py ./
COPY pos_gateway ./pos_gateway
RUN pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheels .
RUN uv pip install --python /venv/bin/python --no-index --no-deps /wheels/*.whl
# What is pinned must be what the package asks for, the worker's extras included.
RUN uv pip check --python /venv/bin/python
RUN uv pip install --python /venv/bin/python --no-index --dry-run 'pos-gateway[worker,postgres,redis,tracing]'

# What is in the venv, as CycloneDX: docker build --target sbom --output FOLDER .
FROM build AS inventory
COPY deploy/image/sbom.txt ./
RUN uv pip install --python "$(command -v python)" --require-hashes --only-binary=:all: -r sbom.txt
RUN cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file /sbom.json /venv/bin/python
FROM scratch AS sbom
COPY --from=inventory /sbom.json /

# Simulated merchants, for a laptop and for a development cluster. No part of the gateway.
FROM python:${PYTHON}${PYTHON_DIGEST:+@$PYTHON_DIGEST} AS merchants
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY deploy/image/merchants.txt ./
RUN pip install --require-hashes --only-binary=:all: -r merchants.txt
COPY pos_gateway/__init__.py ./pos_gateway/
COPY pos_gateway/simulated_merchants ./pos_gateway/simulated_merchants
USER 10001:10001
EXPOSE 8080
CMD ["python", "-m", "pos_gateway.simulated_merchants", "--host", "0.0.0.0", "--port", "8080"]

FROM python:${PYTHON}${PYTHON_DIGEST:+@$PYTHON_DIGEST}
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="POS Gateway" \
      org.opencontainers.image.description="Sends every order to its merchant's point-of-sale API" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /venv /venv
# Log lines appear when they are written, also the last ones before a crash. No bytecode: the
# root file system is read-only, and uv has compiled everything. A container's metrics are read
# from outside of it.
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    POS_GATEWAY_METRICS_HOST=0.0.0.0
# By number, so that Kubernetes can see that it is not root; it owns nothing in the image.
USER 10001:10001
EXPOSE 8080 9808
# For Docker; Kubernetes has probes of its own. Asked over HTTP, for it is the loop that serves the
# orders that answers; with the port turned off, this is off, too.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import os, urllib.request; port = os.environ.get('POS_GATEWAY_METRICS_PORT') or '9808'; port == '0' or urllib.request.urlopen(f'http://127.0.0.1:{port}/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
# No shell in between: the worker itself gets the signal, and finishes what is under way.
CMD ["celery", "-A", "pos_gateway.gcelery", "worker"]
