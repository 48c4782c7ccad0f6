from typing import Any

import pytest

from app.oidc import LASTS_S, identity, metadata, operator, section
from poascope.errors import Misconfigured
from poascope.settings import Settings

ANN = {"is_logged_in": True, "email": "Ann@Example.org", "email_verified": True, "sub": "1f6", "iat": 1000.0}


def test_on_the_list_by_verified_address_or_subject() -> None:
    """The address counts whatever its case, and is the name; a subject counts where it is listed as one."""
    assert operator(ANN, ("ann@example.org",), 1000.0) == "ann@example.org"
    assert operator(ANN | {"email_verified": False}, ("ann@example.org", "sub:1f6"), 1000.0) == "sub:1f6"


@pytest.mark.parametrize(
    "changes",
    [
        {"email_verified": False},
        {"email_verified": None},
        {"email_verified": "false"},
        {"email": "eve@example.org"},
        {"email": ""},
        {"is_logged_in": False},
        {"iat": None},
        {"iat": 1000.0 - LASTS_S - 1},
        {"iat": 1100.0},
        {"sub": "ann@example.org", "email": None},
    ],
)
def test_everybody_else_looks(changes: dict[str, Any]) -> None:
    """Not verified, not listed, not logged in, too long ago or from the future: no operator."""
    assert operator(ANN | changes, ("ann@example.org", ""), 1000.0) is None


def test_who_it_is() -> None:
    """A person is called by address, else by subject."""
    assert (identity(ANN), identity({}), identity({"is_logged_in": True, "sub": "7"})) == ("Ann@Example.org", None, "7")


def test_what_streamlit_is_told() -> None:
    """All of it comes from our settings; the secret of its cookies is made anew; what is missing is named."""
    told = Settings(oidc_url="https://id.example.org/", oidc_client_id="p", oidc_client_secret="s", dash_url="https://p.example.org/")
    auth = section(told)["auth"]
    assert auth["redirect_uri"] == "https://p.example.org/oauth2callback"
    assert auth["server_metadata_url"] == metadata("https://id.example.org") == metadata(metadata("https://id.example.org"))
    assert auth["cookie_secret"] != section(told)["auth"]["cookie_secret"]
    assert section(Settings()) == {}
    with pytest.raises(Misconfigured, match="oidc_client_secret"):
        section(Settings(oidc_url="https://id.example.org", oidc_client_id="p"))
