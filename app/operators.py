"""Who may write: the operator behind a viewer's browser, asked for by every page that changes something.

A page draws `sign_in_form(deployment)` where its buttons would be and shows these only when it returns an operator; each button's
callback calls `require(deployment, what)` at the moment it acts, and signs what it writes with the operator's name.
"""

import time
from dataclasses import dataclass
from typing import Literal

import streamlit as st

from app import here, oidc
from poascope.errors import PoascopeError


@dataclass(frozen=True, slots=True)
class Operator:
    """`name` signs intents and stands in the audit trail; `via`: how it was proved."""

    name: str
    via: Literal["token", "oidc"]


class NotAllowed(PoascopeError):
    """Whoever asked may look and not write; it is in the log and in the audit trail."""


def signed_in() -> Operator | None:
    """The operator of this browser now; None for a mere viewer. Asked anew each time: a sign-out elsewhere counts at once."""
    known = here.get()
    if name := known.desk.operator(st.context.cookies):
        return Operator(name, "token")
    if known.settings.oidc_url and (name := oidc.operator(st.user.to_dict(), known.settings.operators, time.time())):
        return Operator(name, "oidc")
    return None


def require(deployment: str, what: str) -> Operator:
    """The operator, or NotAllowed. `what` was to be done, in a few words, for the log and the audit trail: "override: transition"."""
    found = signed_in()
    if found:
        return found
    who = _logged_in() or "viewer"
    here.get().desk.refused(deployment, who, f"{what} - not signed in as an operator, from {st.context.ip_address or 'this machine'}")
    raise NotAllowed(f"{what} - only an operator may, sign in first")


def sign_in_form(deployment: str | None) -> Operator | None:
    """Draw who is signed in, with the way out, or how to sign in; the operator when there is one."""
    known, found, logged_in = here.get(), signed_in(), _logged_in()
    desk = known.desk
    if found and found.via == "token":
        st.html(desk.form(deployment, found.name))
        return found
    if logged_in:
        if found:
            st.html(f'<p class="po-note">Signed in as <b>{desk.text(found.name)}</b></p>')
        else:
            desk.refused_once(deployment, logged_in, "logged in, and is not among the operators")
            st.html(
                f'<p class="po-note">{desk.text(logged_in)} may look. Who sends overrides is a matter of the setting <i>operators</i>.</p>'
            )
        if st.button("Sign out", width="stretch"):
            st.logout()
        return found
    if known.settings.oidc_url and st.button("Log in to send overrides", width="stretch"):
        st.login()
    if not known.settings.oidc_url or desk.has_tokens:
        st.html(desk.form(deployment, None))
    return None


def _logged_in() -> str | None:
    return oidc.identity(st.user.to_dict()) if here.get().settings.oidc_url else None
