# One image for every process of ours; uv.lock pins what is in it.
FROM python:3.11.13-slim-bookworm
COPY --from=ghcr.io/astral-sh/uv:0.9.5 /uv /usr/local/bin/uv
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never PATH=/app/.venv/bin:$PATH
WORKDIR /app
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --all-extras --no-install-project
COPY . .
RUN uv sync --frozen --no-dev --all-extras --no-editable \
 && useradd --uid 10001 --create-home poascope \
 && install -d -o poascope -g poascope /data /data/testbed
USER 10001:10001
VOLUME /data
ENTRYPOINT []
CMD ["poascope", "--help"]
