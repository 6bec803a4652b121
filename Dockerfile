# The service alone or, without TIROIR_DATABASE_URL, with its embedded PostgreSQL in the volume /var/lib/tiroir.

FROM python:3.13-slim AS build
WORKDIR /src
RUN python -m venv /opt/tiroir
COPY requirements.lock ./
RUN /opt/tiroir/bin/pip install --no-cache-dir --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY alembic alembic
COPY app app
RUN /opt/tiroir/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.13-slim
RUN groupadd --gid 10001 tiroir \
 && useradd --uid 10001 --gid 10001 --create-home --home-dir /var/lib/tiroir tiroir
COPY --from=build /opt/tiroir /opt/tiroir
ENV PATH=/opt/tiroir/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIROIR_HOST=0.0.0.0 \
    TIROIR_PORT=8000 \
    TIROIR_DATA_DIR=/var/lib/tiroir/data
USER 10001:10001
WORKDIR /var/lib/tiroir
VOLUME /var/lib/tiroir
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"TIROIR_PORT\"]}/readyz', timeout=4)"]
CMD ["tiroir", "serve"]
