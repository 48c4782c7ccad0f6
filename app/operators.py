"""Who may write: the operator behind a viewer's browser, asked for by every page that changes something.

A page draws `sign_in_form(deployment)` where its buttons would be and shows these only when it returns an operator; each button's
callback calls `require(deployment, what)` at the moment it acts, and signs what it writes with the operator's name.
"""

from dataclasses import dataclass
from typing import Literal

import streamlit as st

from app import here
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
    name = here.get().desk.operator(st.context.cookies)
    return Operator(name, "token") if name else None


def require(deployment: str, what: str) -> Operator:
    """The operator, or NotAllowed. `what` was to be done, in a few words, for the log and the audit trail: "override: transition"."""
    found = signed_in()
    if found:
        return found
    here.get().desk.refused(deployment, "viewer", f"{what} - not signed in as an operator, from {st.context.ip_address or 'this machine'}")
    raise NotAllowed(f"{what} - only an operator may, sign in first")


def sign_in_form(deployment: str | None) -> Operator | None:
    """Draw who is signed in, with the way out, or how to sign in; the operator when there is one."""
    found = signed_in()
    st.html(here.get().desk.form(deployment, found.name if found else None))
    return found
