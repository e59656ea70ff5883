ARG PYTHON=3.11-slim-bookworm

# Everything that builds stays in this stage: pip, setuptools, their caches.
FROM python:${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src
# Without pip, because the venv is what the last stage gets.
RUN python -m venv --without-pip /venv
# The dependencies first: they change seldom, so this layer is kept from build to build. Wheels
# only: there is no compiler here, and a hash that fits a source archive would ask for one.
COPY requirements.txt ./
RUN pip --python /venv/bin/python install --require-hashes --only-binary=:all: -r requirements.txt
COPY pyproject.toml README.md gcelery.py ./
COPY pos_gateway ./pos_gateway
RUN pip --python /venv/bin/python install --no-deps .
# What is pinned must be what the package asks for.
RUN pip --python /venv/bin/python check

FROM python:${PYTHON}
COPY --from=build /venv /venv
# Log lines appear when they are written, also the last ones before a crash. No bytecode: the
# root file system is read-only, and pip has compiled everything.
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# By number, so that Kubernetes can see that it is not root; it owns nothing in the image.
USER 10001:10001
EXPOSE 9808
STOPSIGNAL SIGTERM
# No shell in between: the worker itself gets the signal, and finishes what is under way.
CMD ["celery", "-A", "pos_gateway.gcelery", "worker"]
