"""How to reach the NATS server and be let in: the same for collector, controller, actuators, page and command line."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from poascope.addresses import without_password
from poascope.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Nats:
    """`url` may carry `user:password@` or `token@`. `credentials`: a .creds file. `tls_*`: PEM files; the authority's alone, or a
    certificate of our own with its key as well, where the server asks for one."""

    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    credentials: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = field(default="", repr=False)

    @property
    def shown(self) -> str:
        return without_password(self.url)

    def options(self) -> dict[str, Any]:
        """The arguments of nats-py's connect that come from here. Raises Misconfigured when a file is missing or unfit."""
        if self.credentials and not Path(self.credentials).is_file():
            raise Misconfigured(f"nats_credentials: {self.credentials} - no such file")
        if self.username and not self.password:
            raise Misconfigured("nats_password: empty - nats_username needs it (NATS_AUTH_PASSWORD)")
        given: dict[str, Any] = {
            "user": self.username or None,
            "password": self.password or None,
            "token": self.token or None,
            "user_credentials": self.credentials or None,
        }
        if self.tls_ca or self.tls_cert or urlsplit(self.url).scheme == "tls":
            given["tls"] = self._context()
        return {"servers": self.url} | {name: value for name, value in given.items() if value is not None}

    def _context(self) -> ssl.SSLContext:
        for name, path in (("nats_tls_ca", self.tls_ca), ("nats_tls_cert", self.tls_cert), ("nats_tls_key", self.tls_key)):
            if path and not Path(path).is_file():
                raise Misconfigured(f"{name}: {path} - no such file")
        try:
            context = ssl.create_default_context(cafile=self.tls_ca or None)
        except (ssl.SSLError, OSError) as error:
            raise Misconfigured(f"nats_tls_ca: {self.tls_ca} - no PEM certificate ({error})") from error
        if self.tls_cert:
            try:
                context.load_cert_chain(self.tls_cert, self.tls_key or None)
            except (ssl.SSLError, OSError) as error:
                raise Misconfigured(f"nats_tls_cert: {self.tls_cert} - does not go with nats_tls_key ({error})") from error
        return context
