"""The override: what an operator wants goes to NATS, after one more look; what became of it comes back in the chain, through `/live`.

Form, confirmation and the cancel button are keyed by nonces that are also idempotency keys and change once it is in the bucket: a second
click finds nothing to press, or repeats the same. The revision expected is the one that this viewer was shown when it was reviewed.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import streamlit as st

from app import here, live, operators
from app.audit import expectation
from app.chain import parameters, wanted
from controller import bus
from controller.protocol import MAX_OMEGA, MAX_TAU, MAX_TEXT, REGIMES, Arming, Intent, Mode
from poascope.errors import PoascopeError, Unreachable
from queries.effects import expected

EXPIRIES = {"5 min": 300, "15 min": 900, "30 min": 1800, "1 h": 3600, "2 h": 7200, "4 h": 14400, "8 h": 28800}
FREE = "free"
CHOICES = {
    "auto": "auto: the controller decides",
    **{name: f"{name}: τ {tau:g} ω {omega:g}" for name, (tau, omega) in REGIMES.items()},
    FREE: "free: τ and ω as below",
    "freeze": "freeze: hold what is in force",
    "arm": "arm: the controller may act by itself",
    "disarm": "disarm: it decides and does not act",
}
ENDLESS = ("auto", "arm", "disarm")


@dataclass(frozen=True, slots=True)
class Asked:
    """What was filled in. `seen`: the revisions of intent and arming that the viewer was shown; `key`: makes it one, however often sent."""

    deployment: str
    choice: str
    tau: float
    omega: float
    expiry: str
    reason: str
    seen: tuple[int, int] = (0, 0)
    key: str = ""

    @property
    def parameters(self) -> tuple[float, float] | None:
        return REGIMES.get(self.choice, (self.tau, self.omega) if self.choice == FREE else None)

    def message(self, operator: str, now: float) -> Intent | Arming:
        """What goes into the bucket."""
        if self.choice in ("arm", "disarm"):
            return Arming(
                armed=self.choice == "arm", reason=self.reason, operator=operator, idempotency_key=self.key, expected_revision=self.seen[1]
            )
        tau, omega = self.parameters or (None, None)
        return Intent(
            mode=cast(Mode, self.choice if self.choice in ("auto", "freeze") else "manual"),
            reason=self.reason,
            operator=operator,
            idempotency_key=self.key,
            expected_revision=self.seen[0],
            tau=tau,
            omega=omega,
            expires_at=None if self.choice == "auto" else now + EXPIRIES[self.expiry],
        )


def _send(asked: Asked, slot: str) -> bool:
    """Put it into the bucket; what happened is kept for the next drawing. True when this key is used up."""
    session, settings, now = st.session_state, here.get().settings, time.time()
    if session.get(slot) != asked.key:
        return False  # the twin of a click that has already been answered
    try:
        message = asked.message(operators.require(asked.deployment, f"override: {asked.choice}").name, now)
        if isinstance(message, Intent):
            intent = message
            revision = bus.call(settings.nats, lambda b: b.put_intent(asked.deployment, intent, now)).revision
        else:
            arming = message
            revision = bus.call(settings.nats, lambda b: b.put_arming(asked.deployment, arming, now)).revision
    except Unreachable as error:
        session["override_said"] = ("bad", f"Perhaps not sent: {error}. Press again, it cannot apply twice.")
        return False
    except PoascopeError as error:
        session["override_said"] = ("bad", f"Refused. {error}.")
        if isinstance(error, operators.NotAllowed) or (isinstance(error, bus.Refused) and error.overtaken_by is None):
            return False  # what was typed stays, to be put right; nothing was written under this key
    else:
        session["override_said"] = ("", f"Sent at {datetime.fromtimestamp(now, UTC):%H:%M:%S} UTC, revision {revision}.")
    session[slot] = uuid.uuid4().hex
    return True


def _review(deployment: str, nonce: str) -> None:
    session = st.session_state
    if session.get("form_nonce") != nonce:
        return
    reason = session[f"reason-{nonce}"].strip()
    known = here.get().control.states.get(deployment)
    asked = Asked(
        deployment,
        session[f"choice-{nonce}"],
        session[f"tau-{nonce}"],
        session[f"omega-{nonce}"],
        session[f"expiry-{nonce}"],
        reason,
        (session.get("override_seen", 0), known.arming.revision if known else 0),
        nonce,
    )
    session["override_filled"] = asked
    if not reason:
        session["override_said"] = ("bad", "Refused. reason: empty - say why.")
        return
    session["override_asked"], session["override_said"] = asked, ("", "")


def _confirm(asked: Asked) -> None:
    if _send(asked, "form_nonce"):
        st.session_state["override_asked"] = None
        if st.session_state["override_said"][0] == "":
            st.session_state["override_filled"] = None


def _back() -> None:
    # Another key: what was filled in may change now, and a key is used for one thing only.
    st.session_state["override_asked"], st.session_state["form_nonce"] = None, uuid.uuid4().hex


def _cancel(deployment: str, nonce: str) -> None:
    seen = (st.session_state.get("override_seen", 0), 0)
    _send(Asked(deployment, "auto", 0.0, 0.0, "", "override cancelled on the page", seen, nonce), "cancel_nonce")
    st.session_state["cancel_told"] = False


def summary(deployment: str | None) -> None:
    """For the sidebar of pages that only watch: what is in force, and where it is changed."""
    st.html('<h2 class="po-title">Override</h2>')
    if here.get().file:
        st.html('<p class="po-note">A file is shown: there is nothing to steer.</p>')
        return
    if deployment is None:
        st.html('<p class="po-note">No deployment heard yet: there is nothing to steer.</p>')
        return
    live.chain()
    st.html('<p class="po-note">It is changed on the Control page.</p>')


@st.fragment
def chain(deployment: str) -> None:
    """What is wanted, decided, acknowledged and observed. Reruns only when it shows another revision: the one the next intent expects."""
    session = st.session_state
    session.setdefault("cancel_nonce", uuid.uuid4().hex)
    if not session.setdefault("cancel_told", True):
        session["cancel_told"] = True
        st.rerun()  # what became of it is told below the form, outside this fragment
    shown = live.chain()
    if shown is not None:
        session["override_seen"] = shown
    state = here.get().control.states.get(deployment)
    if operators.signed_in() and state and wanted(state.intent.value, time.time()) != "auto":
        nonce = session["cancel_nonce"]
        st.button("Cancel override", key=f"cancel-{nonce}", on_click=_cancel, args=(deployment, nonce), width="stretch")


def form(deployment: str) -> None:
    """Choose and say why, look at it once more, confirm. Only an operator sees it."""
    session = st.session_state
    session.setdefault("form_nonce", uuid.uuid4().hex)
    asked: Asked | None = session.get("override_asked")
    operator = operators.sign_in_form(deployment)
    if operator and asked and asked.deployment == deployment:
        _confirmation(asked, operator.name)
    elif operator:
        _choose(deployment, session["form_nonce"], session.get("override_filled"))
    kind, said = session.get("override_said", ("", ""))
    live.note(said, kind)


def _choose(deployment: str, nonce: str, filled: Asked | None) -> None:
    was = filled or Asked(deployment, "auto", 0.7, 1.0, "15 min", "")
    with st.form(f"override-{nonce}", border=False):
        st.radio(
            "What to do",
            list(CHOICES),
            index=list(CHOICES).index(was.choice),
            format_func=lambda choice: CHOICES[choice],
            key=f"choice-{nonce}",
        )
        tau, omega, expiry = st.columns(3)
        tau.number_input("τ (free)", 0.0, MAX_TAU, was.tau, 0.1, key=f"tau-{nonce}")
        omega.number_input("ω (free)", 0.0, MAX_OMEGA, was.omega, 0.1, key=f"omega-{nonce}")
        expiry.selectbox("Ends after", list(EXPIRIES), index=list(EXPIRIES).index(was.expiry), key=f"expiry-{nonce}")
        st.text_input("Reason", was.reason, max_chars=MAX_TEXT, key=f"reason-{nonce}", placeholder="why, for whoever looks next")
        st.form_submit_button("Review", on_click=_review, args=(deployment, nonce), width="stretch")
    live.note(profiles(), key="profiles")


def profiles() -> str:
    """Which parameters there are, where an actuator has only some."""
    known = here.get().settings.profiles
    told = ", ".join(f"{p.name} τ {p.tau:g} ω {p.omega:g}" for p in known)
    return f"The gateway has these frontends, and no other τ and ω: {told}. A router takes any." if known else ""


def _confirmation(asked: Asked, operator: str) -> None:
    with st.container(border=True, key="confirmation"):
        st.html('<h2 class="po-title">Do this?</h2>')
        live.note("\n".join(_repeated(asked, operator)), "ask", key="repeated")
        confirm, back = st.columns(2)
        confirm.button("Confirm", key=f"confirm-{asked.key}", type="primary", on_click=_confirm, args=(asked,), width="stretch")
        back.button("Back", key=f"back-{asked.key}", on_click=_back, width="stretch")


def _repeated(asked: Asked, operator: str) -> list[str]:
    """The numbers once more, what is in force, who will carry it out, and what to expect."""
    control, feed = here.get().control, here.get().feed
    state, loop, row = control.states.get(asked.deployment), control.loops.get(asked.deployment), feed.newest(asked.deployment)
    for_how_long = "" if asked.choice in ENDLESS else f" for {asked.expiry}, then back to auto"
    what = {
        "auto": "Hand back to the controller",
        "freeze": "Hold what is in force",
        "arm": "Let the controller act on the regime by itself",
        "disarm": "Let the controller decide and not act",
    }.get(asked.choice, "")
    values = asked.parameters
    if values:
        what = f"Set {parameters(*values)}" + (f" ({asked.choice})" if asked.choice != FREE else "")
    lines = [f"{what} on {asked.deployment}{for_how_long}.", f"As {operator}: {asked.reason}", ""]
    want = wanted(state.intent.value, time.time()) if state else "unknown"
    seen = parameters(row.get("tau"), row.get("omega")) if row else "unknown"
    lines.append(f"Now wanted: {want}; observed: {seen}.")
    if values is None and asked.choice == "auto" and loop and loop.tau is not None and loop.omega is not None and loop.armed:
        values = REGIMES.get(loop.regime or "")
    if values and (known := here.get().settings.profiles) and state and "gateway" in state.acks:
        fits = next((p.name for p in known if (p.tau, p.omega) == values), None)
        lines.append(f"The gateway sends new requests to the frontend {fits}." if fits else f"The gateway will refuse this. {profiles()}")
    if state and state.controller_at is None:
        lines.append("No controller answers: nothing happens until one runs.")
    return [*lines, "", *_expected(asked, values, feed.wait_for_effects)]


def _expected(asked: Asked, values: tuple[float, float] | None, effects: Callable[[str], list[dict[str, object]]]) -> list[str]:
    if values is None:
        return []
    try:
        return [f"Expected effect of {parameters(*values)}:", *expectation(expected(effects(asked.deployment), *values))]
    except (PoascopeError, TimeoutError) as error:
        return [f"Expected effect: not known now. {str(error) or 'The collector takes too long.'}"]
