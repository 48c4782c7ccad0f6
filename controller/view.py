"""What the controller sees, does and would do now, as the Control page shows it. Pure."""

from typing import Literal

from controller.policy import Config, Hold, Observation, Set, dwell_left_s, switches
from controller.protocol import Loop, Override, Target


def view(
    observation: Observation, config: Config, decided: Set | Hold, in_force: Target | None, revisions: tuple[int, int], next_at: float
) -> Loop:
    """The state of the loop after a decision. `in_force`: the target as it is now; `revisions`: its own and the arming's, 0 without one."""
    now, signal, wanted = observation.now, observation.signal, observation.wanted
    would = decided.would if isinstance(decided, Hold) else None
    tau, omega = would or ((in_force.tau, in_force.omega) if in_force else (None, None))
    override = None
    if in_force and in_force.mode != "auto" and in_force.expires_at and in_force.intent_revision is not None:
        intent = wanted.intent if wanted and wanted.revision == in_force.intent_revision else None
        override = Override(
            mode=in_force.mode,
            operator=intent.operator if intent else "",
            reason=intent.reason if intent else "",
            revision=in_force.intent_revision,
            expires_at=in_force.expires_at,
            left_s=max(0.0, in_force.expires_at - now),
        )
    action: Literal["set", "hold", "dry run"] = "set" if isinstance(decided, Set) else "dry run" if would else "hold"
    return Loop(
        at=now,
        next_at=next_at,
        armed=observation.armed,
        mode=in_force.mode if in_force else "auto",
        action=action,
        reason=decided.reason if isinstance(decided, Hold) else "expiry" if decided.expired else "changed",
        why=decided.why if isinstance(decided, Hold) else decided.target.why,
        tau=tau,
        omega=omega,
        regime=signal.regime if signal else None,
        signal_at=signal.ts if signal else None,
        signal_age_s=now - signal.ts if signal else None,
        ttft_p99_s=signal.ttft_p99_s if signal else None,
        ttft_ewma_s=signal.ttft_ewma_s if signal else None,
        thresholds_s=signal.thresholds_s if signal else None,
        held=signal.held if signal else None,
        dwell_left_s=dwell_left_s(in_force, now, config),
        switches_left=max(0, config.max_switches - len(switches(in_force, now))),
        switches_max=config.max_switches,
        target_revision=revisions[0],
        arming_revision=revisions[1],
        lease_s=in_force.lease_s if in_force else config.lease_s,
        override=override,
    )
