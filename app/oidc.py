"""Logging in by OpenID Connect: Streamlit's own st.login, told by our settings. Who may write is on a list; everybody else may look."""

import secrets
from collections.abc import Mapping
from typing import Any

from poascope.errors import Misconfigured
from poascope.settings import Settings

LASTS_S = 8 * 3600.0  # Streamlit's own cookie lasts 30 days, and it looks at no expiry


def section(settings: Settings) -> dict[str, Any]:
    """What Streamlit is told instead of a secrets.toml; empty without OIDC. Raises Misconfigured when something of it is missing.

    The secret that signs Streamlit's cookie is made anew: a restart of the dashboard logs everybody out.
    """
    if not settings.oidc_url:
        return {}
    for name in ("oidc_client_id", "oidc_client_secret"):
        if not getattr(settings, name):
            raise Misconfigured(f"{name}: empty - oidc_url needs it; the provider gave it to you with the client")
    return {
        "auth": {
            "redirect_uri": f"{settings.dash_address}/oauth2callback",
            "cookie_secret": secrets.token_hex(32),
            "client_id": settings.oidc_client_id,
            "client_secret": settings.oidc_client_secret,
            # Who is to write says anew who he is; Streamlit's own default is a prompt that not every provider knows.
            "client_kwargs": {"prompt": "login"},
            "server_metadata_url": metadata(settings.oidc_url),
        }
    }


def metadata(url: str) -> str:
    return url if "/.well-known/" in url else f"{url.rstrip('/')}/.well-known/openid-configuration"


def identity(user: Mapping[str, Any]) -> str | None:
    """Who logged in, as a person would write it; None when nobody did."""
    return str(user.get("email") or user.get("sub") or "somebody") if user.get("is_logged_in") else None


def operator(user: Mapping[str, Any], allowed: tuple[str, ...], now: float) -> str | None:
    """The name under which this login may write at `now` (Unix s): on the list, by verified email or as `sub:SUBJECT`, and not too old."""
    issued_at = user.get("iat")
    if not user.get("is_logged_in") or not isinstance(issued_at, int | float) or not -60 <= now - issued_at <= LASTS_S:
        return None
    email, subject = str(user.get("email") or ""), str(user.get("sub") or "")
    if email and user.get("email_verified") in (True, "true") and email.lower() in {name.lower() for name in allowed}:
        return email.lower()
    return f"sub:{subject}" if subject and f"sub:{subject}" in allowed else None
