"""The override: what an operator wants goes to NATS; what became of it comes back in the chain above the form, through `/live`.

The form and the cancel button are keyed by nonces that are also idempotency keys and change once an intent is in the bucket: a second
click finds nothing to press, or repeats the same intent. The revision expected is the one that this viewer's chain was showing.
"""

import time
import uuid
from datetime import UTC, datetime
from typing import cast

import streamlit as st

from app import here, live, operators
from app.chain import wanted
from controller import bus
from controller.protocol import MAX_TEXT, REGIMES, Intent, Mode
from poascope.errors import PoascopeError, Unreachable

EXPIRIES = {"5 min": 300, "15 min": 900, "30 min": 1800, "1 h": 3600, "2 h": 7200, "4 h": 14400, "8 h": 28800}
CHOICES = {
    "auto": "auto: the controller decides",
    **{name: f"{name}: τ {tau:g} ω {omega:g}" for name, (tau, omega) in REGIMES.items()},
    "freeze": "freeze: hold what is in force",
}


def _send(deployment: str, choice: str, reason: str, expiry_s: float, slot: str, nonce: str) -> None:
    """Put one intent, as it stood in the form when the button was pressed; what happened is kept for the next drawing."""
    session, settings = st.session_state, here.get().settings
    if session.get(slot) != nonce:
        return  # the twin of a click that has already been answered
    try:
        operator = operators.require(deployment, f"override: {choice}")
    except operators.NotAllowed as error:
        session["override_said"] = ("bad", f"Refused. {error}.")
        return
    now = time.time()
    tau, omega = REGIMES.get(choice, (None, None))
    intent = Intent(
        mode=cast(Mode, choice if choice in ("auto", "freeze") else "manual"),
        reason=reason.strip(),
        operator=operator.name,
        idempotency_key=nonce,
        expected_revision=session.get("override_seen", 0),
        tau=tau,
        omega=omega,
        expires_at=None if choice == "auto" else now + expiry_s,
    )
    try:
        sent = bus.call(settings.nats, lambda b: b.put_intent(deployment, intent, now))
    except Unreachable as error:
        session["override_said"] = ("bad", f"Perhaps not sent: {error}. Press again, it cannot apply twice.")
        return
    except PoascopeError as error:
        session["override_said"] = ("bad", f"Refused. {error}.")
        if isinstance(error, bus.Refused) and error.overtaken_by is None:
            return  # what was typed stays, to be put right; nothing was written under this key
    else:
        session["override_said"] = ("", f"Sent at {datetime.fromtimestamp(now, UTC):%H:%M:%S} UTC, revision {sent.revision}.")
    session[slot] = uuid.uuid4().hex


def _submit(deployment: str, nonce: str) -> None:
    session = st.session_state
    _send(deployment, session[f"choice-{nonce}"], session[f"reason-{nonce}"], EXPIRIES[session[f"expiry-{nonce}"]], "form_nonce", nonce)


def _cancel(deployment: str, nonce: str) -> None:
    _send(deployment, "auto", "override cancelled on the page", 0, "cancel_nonce", nonce)
    st.session_state["cancel_told"] = False


def render(deployment: str | None) -> None:
    """The sidebar: what is in force above, the form below. The chain renews itself in the browser and leaves the form alone."""
    st.html('<h2 class="po-title">Override</h2>')
    if here.get().file:
        st.html('<p class="po-note">A file is shown: there is nothing to steer.</p>')
        return
    if deployment is None:
        st.html('<p class="po-note">No deployment heard yet: there is nothing to steer.</p>')
        return
    for slot in ("form_nonce", "cancel_nonce"):
        st.session_state.setdefault(slot, uuid.uuid4().hex)
    _chain(deployment)
    if not operators.sign_in_form(deployment):
        return
    nonce = st.session_state["form_nonce"]
    with st.form(f"override-{nonce}", border=False):
        st.radio("Routing parameters", list(CHOICES), format_func=lambda choice: CHOICES[choice], key=f"choice-{nonce}")
        st.selectbox("Ends after", list(EXPIRIES), index=1, key=f"expiry-{nonce}", help="Not for auto, which has no end.")
        st.text_input("Reason", max_chars=MAX_TEXT, key=f"reason-{nonce}", placeholder="why, for whoever looks next")
        st.form_submit_button("Send override", on_click=_submit, args=(deployment, nonce), width="stretch")
    kind, said = st.session_state.get("override_said", ("", ""))
    live.note(said, kind)


@st.fragment
def _chain(deployment: str) -> None:
    """Reruns only when the viewer's chain shows another revision: that is the one the next intent expects."""
    if not st.session_state.setdefault("cancel_told", True):
        st.session_state["cancel_told"] = True
        st.rerun()  # what became of it is told below the form, outside this fragment
    shown = live.chain()
    if shown is not None:
        st.session_state["override_seen"] = shown
    state = here.get().control.states.get(deployment)
    if operators.signed_in() and state and wanted(state.intent.value, time.time()) != "auto":
        nonce = st.session_state["cancel_nonce"]
        st.button("Cancel override", key=f"cancel-{nonce}", on_click=_cancel, args=(deployment, nonce), width="stretch")
