import ssl
from pathlib import Path

import pytest
import trustme

from poascope.errors import Misconfigured
from poascope.nats import Nats
from poascope.settings import Settings, load


def test_secrets_are_not_shown() -> None:
    """Neither in what is logged, nor where the value itself is printed."""
    where = Nats("nats://ann:secret@host:4222", username="ann", password="hidden", token="hush")
    assert where.shown == "nats://host:4222"
    assert not [word for word in ("hidden", "hush") if word in repr(where)]


def test_dynamos_own_names_are_understood(tmp_path: Path) -> None:
    """User, password and token come by the variables that Dynamo reads."""
    env = {"NATS_SERVER": "tls://host:1", "NATS_AUTH_USERNAME": "u", "NATS_AUTH_PASSWORD": "p", "NATS_AUTH_TOKEN": "t"}
    options = load(None, env).nats.options()
    assert (options["servers"], options["user"], options["password"], options["token"]) == ("tls://host:1", "u", "p", "t")
    assert isinstance(options["tls"], ssl.SSLContext)
    assert Settings().nats.options() == {"servers": "nats://127.0.0.1:4222"}


@pytest.mark.parametrize("name", ["credentials", "tls_ca", "tls_cert", "tls_key"])
def test_a_file_that_is_not_there_is_named(name: str) -> None:
    """By the setting that names it."""
    with pytest.raises(Misconfigured, match=f"nats_{name}: absent.pem - no such file"):
        Nats("nats://host", **({"tls_cert": __file__} if name == "tls_key" else {}), **{name: "absent.pem"}).options()


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    """No certificate where one should be, or a key that is another's."""
    with pytest.raises(Misconfigured, match="nats_tls_ca"):
        Nats("nats://host", tls_ca=__file__).options()
    authority = trustme.CA()
    one, other = authority.issue_cert("a"), authority.issue_cert("b")
    one.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    other.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    with pytest.raises(Misconfigured, match="nats_tls_key"):
        Nats("nats://host", tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem")).options()
    with pytest.raises(Misconfigured, match="nats_password"):
        Nats("nats://host", username="u").options()
