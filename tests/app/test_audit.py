"""The audit log: who, what, why, and what it brought, as text."""

from datetime import datetime
from typing import Any

from app import override
from app.audit import entries, expectation, told
from queries.effects import Expected
from queries.estimators.effect import Effect

AT = datetime.fromisoformat("2026-01-01T12:00:00")
EMPTY: dict[str, Any] = dict.fromkeys(
    ("mode", "regime", "tau", "omega", "from_tau", "from_omega", "expires_at", "replica", "why", "error", "revision")
)


def decision(kind: str, actor: str | None = "ann", second: int = 0, **given: Any) -> dict[str, Any]:
    return EMPTY | {"ts": AT.replace(second=second), "kind": kind, "actor": actor} | given


def effect(measure: str, before: float, after: float, low: float, high: float, **given: Any) -> dict[str, Any]:
    row = {
        "measure": measure,
        "before": before,
        "after": after,
        "ratio": after / before,
        "low": low,
        "high": high,
        "n_before": 240,
        "n_after": 230,
    }
    return row | {"withheld": None, "confounded": None, "complete": True, "ts": AT.replace(second=1), "intent_at": AT} | given


def test_an_override_has_its_effect_beside_it() -> None:
    """The effect stands with the operator's intent, not again with the target; the newest entry comes first, hostile text as it was."""
    said = [
        decision("intent", mode="manual", tau=0.7, omega=1.0, why="<b>now</b>", expires_at=AT.replace(minute=15)),
        decision("target", "controller", 1, mode="manual", tau=0.7, omega=1.0, from_tau=0.0, from_omega=1.0),
        decision("ack", None, 2, replica="gateway", error="caddy is gone"),
    ]
    found = entries(said, [effect("ttft_p50_s", 2.0, 1.0, 0.4, 0.6)])
    assert [entry.kind for entry in found] == ["ack", "target", "intent"]
    assert (found[2].what, found[2].why) == ("manual τ 0.7 ω 1 until 12:15:00", "<b>now</b>")
    assert found[2].effect == ["TTFT P50 2.00 s → 1.00 s, ×0.50 (0.40–0.60), n 240 / 230: fell"]
    assert (found[1].what, found[1].effect) == ("manual τ 0.7 ω 1 from τ 0 ω 1", [])
    assert (found[0].actor, found[0].good, found[0].why) == ("gateway", False, "caddy is gone")


def test_what_must_not_be_claimed_is_not() -> None:
    """Confounded: numbers and the reason, no verb. Withheld: the reason alone. Not complete: so far. An interval round 1: no change."""
    lines, doubt = told([effect("ttft_p50_s", 2.0, 1.0, 0.4, 0.6, confounded="the load changed too")])
    assert lines[0].endswith("n 240 / 230") and doubt == "the load changed too"
    nothing = effect("ttft_p99_s", 1.0, 1.0, 1.0, 1.0, withheld="12 requests before it < 30", ratio=None, complete=False)
    assert told([nothing]) == ([], "so far: 12 requests before it < 30")
    assert told([effect("finished_per_s", 2.0, 2.1, 0.9, 1.2)])[0] == [
        "throughput 2 req/s → 2.1 req/s, ×1.05 (0.90–1.20), n 240 / 230: no change seen"
    ]
    assert told([]) == ([], "")


def test_the_expected_effect_says_how_much_it_rests_on() -> None:
    """Never, not measurable, or so many times with n and interval."""
    assert expectation(Expected(0, 0, None, None, (), None)) == ["Never done here: nothing is known about what it will do."]
    assert expectation(Expected(2, 0, AT, "bob", (), "the load changed too"))[1] == "No effect can be claimed: the load changed too."
    lines = expectation(Expected(3, 2, AT, "ann", (Effect("ttft_p99_s", 4.0, 2.0, 0.5, 0.4, 0.6, 500, 480),), None))
    assert lines[0] == "Done here 3 times, last at 2026-01-01 12:00 UTC by ann; 2 of 3 could be measured."
    assert lines[1] == "TTFT P99 fell, ×0.50 (0.40–0.60), n 500 / 480"


def test_an_effect_that_comes_too_late_is_said_and_hinders_nothing() -> None:
    """A confirmation is drawn whatever becomes of the question what to expect."""

    def late(deployment: str) -> list[dict[str, object]]:
        raise TimeoutError

    asked = override.Asked("dynamo", "transition", 0.7, 1.0, "15 min", "why")
    assert override._expected(asked, (0.7, 1.0), late) == ["Expected effect: not known now. The collector takes too long."]
