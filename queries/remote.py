"""Named queries asked of a running collector over HTTP."""

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote

import httpx
import pyarrow as pa

from poascope.errors import Misconfigured, PoascopeError, Unreachable

TIMEOUT = httpx.Timeout(60.0, connect=5.0)
TYPES = {"arrow": "application/vnd.apache.arrow.stream", "json": "application/json", "csv": "text/csv"}
# A name or an address; httpx itself takes "[" and " " for hosts, and would only find out that nobody has them.
_HOST = re.compile(r"[\w.-]+|[0-9a-fA-F:.]+(%\w+)?")


@contextmanager
def ask(url: str, token: str, name: str, given: Mapping[str, str], form: str) -> Iterator[httpx.Response]:
    """The open response of `GET /query/{name}`, to be read in pieces. Raises Misconfigured, Unreachable or PoascopeError."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        base = httpx.URL(url)
        if not base.host or not _HOST.fullmatch(base.host) or not 0 <= (base.port or 0) < 65536:
            raise httpx.InvalidURL("no host, or no port, that there could be")
        target = httpx.URL(url.rstrip("/") + "/query/" + quote(name, safe=""))
        with httpx.stream("GET", target, params={**given, "format": form}, headers=headers, timeout=TIMEOUT) as response:
            if response.status_code != 200:
                raise _refusal(url, response)
            if not response.headers.get("content-type", "").startswith(TYPES[form]):
                raise PoascopeError(f"url: {url} - answers, but not as a collector does; is that its read API (api_port)?")
            yield response
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise Misconfigured(f"url: {url} - not an HTTP address of a collector ({error})") from error
    except httpx.TransportError as error:
        raise Unreachable(f"url: {url} - no answer ({error or type(error).__name__}); is `poascope collect` running there?") from error


@contextmanager
def read(url: str, token: str, name: str, given: Mapping[str, str]) -> Iterator[pa.RecordBatchReader]:
    """Rows of the query in batches. They pass through a temporary file, so that memory stays bounded."""
    with tempfile.TemporaryFile() as file:
        with ask(url, token, name, given, "arrow") as response:
            for chunk in response.iter_bytes():
                file.write(chunk)
        file.seek(0)
        with pa.ipc.open_stream(file) as reader:
            yield reader


def _refusal(url: str, response: httpx.Response) -> PoascopeError:
    response.read()
    try:
        says = str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return PoascopeError(f"url: {url} - answered {response.status_code}, not as a collector does")
    return Misconfigured(says) if response.status_code < 500 else PoascopeError(f"url: {url} - {says}")
