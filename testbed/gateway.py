"""Caddy's configuration: one reverse proxy whose upstream the controller moves through the admin API."""

from pathlib import Path
from typing import Any

HANDLER_ID = "poascope-gateway"
REQUEST_ID_HEADER = "X-Dynamo-Request-Id"


def caddy_config(*, port: int, admin_port: int, upstream: str, access_log: Path) -> dict[str, Any]:
    """Every request to `upstream` (host:port), streams unbuffered and never timed out.

    `PATCH /id/poascope-gateway/upstreams` moves new requests. The access log gives each request's `upstream` and `request_id`;
    Dynamo takes the id from the header, so it is also that of NATS events and of the response (`chatcmpl-<request_id>`).
    """
    proxy = {
        "@id": HANDLER_ID,
        "handler": "reverse_proxy",
        "upstreams": [{"dial": upstream}],
        "flush_interval": -1,
        "headers": {"request": {"set": {REQUEST_ID_HEADER: ["{http.request.uuid}"]}}},
    }
    appended = [
        {"handler": "log_append", "key": "upstream", "value": "{http.reverse_proxy.upstream.hostport}"},
        {"handler": "log_append", "key": "request_id", "value": "{http.request.uuid}"},
    ]
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
                        "automatic_https": {"disable": True},
                        "logs": {"default_logger_name": "gateway"},
                        "routes": [{"handle": [*appended, proxy]}],
                    }
                }
            }
        },
    }
