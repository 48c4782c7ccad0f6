"""Caddy's configuration: one reverse proxy that reads for each request where to send it; the controller writes that file."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

HANDLER_ID = "poascope-gateway"
REQUEST_ID_HEADER = "X-Dynamo-Request-Id"
UPSTREAM_HEADER = "X-Poascope-Upstream"


@dataclass(frozen=True, slots=True)
class Access:
    """One answered request as the gateway saw it. `duration_s` is None for a stream that was cut: Caddy then logs 0."""

    ended_at: float
    request_id: str
    upstream: str
    status: int
    path: str
    duration_s: float | None


def caddy_config(*, port: int, admin_port: int, upstream: Path | str, access_log: Path) -> dict[str, Any]:
    """Every request to `upstream`, streams unbuffered and never timed out.

    A path: a file that holds host:port; rewriting it moves new requests and loses none. A plain host:port is moved through the admin API
    (`PATCH /id/poascope-gateway/upstreams`), by which Caddy starts its server anew. The access log gives each request's `uuid`, which
    Dynamo takes from the header, so that NATS events and the answer (`chatcmpl-<uuid>`) carry it too, and its `upstream`. That also
    stands in a response header, because Caddy appends nothing to the log line of a stream that is cut.
    """
    proxy = {
        "@id": HANDLER_ID,
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"{{file.{upstream}}}" if isinstance(upstream, Path) else upstream}],
        "flush_interval": -1,
        "headers": {
            "request": {"set": {REQUEST_ID_HEADER: ["{http.request.uuid}"]}},
            "response": {"set": {UPSTREAM_HEADER: ["{http.reverse_proxy.upstream.hostport}"]}},
        },
    }
    upstream_logged = {"handler": "log_append", "key": "upstream", "value": "{http.reverse_proxy.upstream.hostport}"}
    return {
        "admin": {"listen": f"127.0.0.1:{admin_port}", "config": {"persist": False}},
        "logging": {
            "logs": {
                "default": {"exclude": ["http.log.access.gateway"], "level": "WARN"},
                "access": {
                    "writer": {"output": "file", "filename": str(access_log)},
                    "encoder": {"format": "json"},
                    "include": ["http.log.access.gateway"],
                },
            }
        },
        "apps": {
            "http": {
                "servers": {
                    "gateway": {
                        "listen": [f"127.0.0.1:{port}"],
                        "protocols": ["h1"],
                        "automatic_https": {"disable": True},
                        "logs": {"default_logger_name": "gateway"},
                        "routes": [{"handle": [upstream_logged, proxy]}],
                    }
                }
            }
        },
    }


def read_access_log(path: Path) -> Iterator[Access]:
    """Every request that the gateway has finished, in the order in which they ended."""
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        entry = msgspec.json.decode(line)
        headers = entry.get("resp_headers") or {}
        yield Access(
            ended_at=entry["ts"],
            request_id=entry["uuid"],
            upstream=entry.get("upstream") or next(iter(headers.get(UPSTREAM_HEADER, ())), ""),
            status=entry["status"],
            path=entry["request"]["uri"],
            duration_s=entry["duration"] or None,
        )
