"""`poascope control` as a process, and `poascope intent` against it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from controller.bus import Bus, connect
from controller.protocol import Decision
from controller.verbs import seconds
from poascope.errors import Misconfigured
from poascope.settings import Profile
from tests.conftest import NatsServer, free_port
from tests.controller.conftest import Caddy, arm, pulse, until

POASCOPE = Path(sys.executable).parent / "poascope"


class Shell:
    """The command line with settings of its own."""

    def __init__(self, folder: Path, nats_url: str) -> None:
        self.folder = folder
        known = {k: v for k, v in os.environ.items() if not k.startswith(("POASCOPE_", "DYN_", "NATS_"))}
        self.env = known | {"NATS_SERVER": nats_url, "POASCOPE_OPERATOR": "alice", "COLUMNS": "200"}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [POASCOPE, *args], env=self.env, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.started.append(process)
        return process

    async def run(self, *args: str) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        process = self.start(*args)
        out, err = await asyncio.to_thread(process.communicate)
        return process.returncode, out, err


@pytest.fixture
def shell(tmp_path: Path, nats_server: NatsServer) -> Iterator[Shell]:
    made = Shell(tmp_path, nats_server.url)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


async def test_set_show_and_cancel_do_what_the_page_does(shell: Shell, bus: Bus, caddy: Caddy, profiles: tuple[Profile, ...]) -> None:
    """With `poascope control` running, --wait returns once the gateway has acknowledged; killed and started again it goes on."""
    tables = "".join(f'[[profiles]]\nname = "{p.name}"\ntau = {p.tau}\nomega = {p.omega}\nurl = "{p.url}"\n' for p in profiles)
    (shell.folder / "poascope.toml").write_text(f'namespaces = ["dynamo"]\ncaddy_admin_url = "{caddy.admin_url}"\n{tables}')
    control = shell.start("control")

    code, out, err = await shell.run(
        "intent", "set", "--preset", "transition", "--reason", "spike", "--expires", "30m", "--wait", "20", "--json"
    )
    assert (code, err) == (0, "")
    state = json.loads(out)
    assert state["intent"]["value"]["operator"] == "alice"
    assert (state["acks"]["gateway"]["value"]["tau"], state["target"]["value"]["mode"]) == (0.7, "manual")
    assert state["acks"]["gateway"]["value"]["target_revision"] == state["target"]["revision"]

    control.send_signal(signal.SIGKILL)
    control.wait()
    again = shell.start("control")
    code, out, err = await shell.run("intent", "cancel", "--reason", "over", "--wait", "20")
    assert (code, err) == (0, "")
    assert "alice asked for auto (over)" in out

    code, out, err = await shell.run("intent", "set", "--tau", "0.5", "--omega", "1", "--reason", "try", "--expires", "5m", "--wait", "20")
    assert code == 1
    assert "gateway: profile: τ 0.5, ω 1 - no frontend behind the gateway has these" in err

    code, out, err = await shell.run("intent", "show")
    assert code == 0
    assert "try (until " in out
    again.terminate()
    assert again.wait() == 0
    code, out, err = await shell.run("intent", "show")
    assert code == 0
    assert "no controller answers" in out


async def test_what_cannot_be_taken_is_refused_with_a_code(shell: Shell, bus: Bus) -> None:
    """2 for what was typed wrong, 1 for an overtaken or an unanswered intent, 3 when NATS is away."""
    freeze = ("intent", "set", "--mode", "freeze", "--reason", "r", "--expires", "1h")
    for args, code, message in (
        (freeze, 2, "deployment: none known yet - name one with --deployment"),
        (("intent", "show", "--deployment", "nope"), 1, "deployment: nope - nobody wanted or decided anything for it; known: none"),
        (("intent", "set", "--reason", "r", "--deployment", "d"), 2, "mode: none - give"),
        (("intent", "set", "--preset", "calm", "--reason", "r", "--deployment", "d"), 2, "preset: calm - must be one of below"),
        (("intent", "set", "--preset", "below", "--reason", "r", "--deployment", "d"), 2, "expires_at: missing"),
        (("intent", "set", "--preset", "below", "--reason", "r", "--expires", "1m", "--deployment", "d"), 2, "expires_at: in 1.0 min"),
        ((*freeze, "--deployment", "d", "--key", "k"), 0, ""),
        ((*freeze, "--deployment", "d", "--key", "k"), 0, ""),
        ((*freeze, "--deployment", "d", "--expect", "0"), 1, "overtaken by alice (freeze, revision 1)"),
        ((*freeze, "--deployment", "d", "--wait", "0.5"), 1, "the controller has not taken it"),
        ((*freeze, "--nats", f"nats://127.0.0.1:{free_port()}"), 3, "NATS: "),
    ):
        got, out, err = await shell.run(*args)
        assert (got, message in err) == (code, True), (args, out, err)
    assert (await bus.intent("d")).revision == 2


async def test_arming_is_an_operators_act(shell: Shell, bus: Bus) -> None:
    """Armed and disarmed by name, with a reason, once for each key; what is refused is in the trail."""
    said: list[Decision] = []
    await bus.hear("poascope.d.decision", lambda message: said.append(msgspec.json.decode(message.data, type=Decision)))
    await bus.client.flush()
    arming = ("intent", "arm", "--reason", "on call", "--deployment", "d")
    for args, code, message in (
        (("intent", "show", "--deployment", "d"), 1, "nobody wanted or decided anything"),
        ((*arming, "--key", "k"), 0, "armed by alice at "),
        ((*arming, "--key", "k"), 0, "this key was used before: nothing new was written"),
        ((*arming, "--expect", "0"), 1, "overtaken by alice (armed, revision 1)"),
        (("intent", "arm", "--reason", " ", "--deployment", "d"), 2, "reason: empty - say why"),
        (("intent", "show", "--deployment", "d"), 0, "(on call): the controller acts on the regime by itself"),
        (("intent", "disarm", "--reason", "over", "--deployment", "d"), 0, "disarmed by alice at "),
        (("intent", "set", "--preset", "below", "--reason", "r", "--expires", "1m", "--deployment", "d"), 2, "expires_at: in 1.0 min"),
    ):
        got, out, err = await shell.run(*args)
        assert (got, message in out + err) == (code, True), (args, out, err)
    code, out, _ = await shell.run("intent", "show", "--deployment", "d", "--json")
    assert json.loads(out)["arming"]["value"]["armed"] is False
    await bus.client.flush()
    assert [(d.kind, d.actor, d.why.split(":")[0]) for d in said] == [
        ("refusal", "alice", "expected_revision"),
        ("refusal", "alice", "reason"),
        ("refusal", "alice", "expires_at"),
    ]


async def test_auto_that_nobody_armed_is_not_waited_for(shell: Shell, bus: Bus) -> None:
    """A deployment where nothing was ever set stays so: --wait says why at once."""
    control = shell.start("control")
    await until(bus.controller_at)
    code, _, err = await shell.run("intent", "cancel", "--reason", "r", "--deployment", "d", "--wait", "30")
    assert (code, "not armed and nothing was ever set" in err) == (1, True), err
    control.terminate()


async def test_the_controller_waits_for_its_server(shell: Shell, nats_server: NatsServer) -> None:
    """Started before NATS, it does its work once NATS is there."""
    nats_server.kill()
    control = shell.start("control")
    await asyncio.sleep(1)
    assert control.poll() is None
    nats_server.start()
    async with connect(nats_server.url) as bus:
        await arm(bus)

        async def decided() -> bool:
            await pulse(bus, regime="transition")
            return (await bus.target("dynamo")).value is not None

        await until(decided)


async def test_a_gateway_without_profiles_is_a_mistake(shell: Shell) -> None:
    """An admin URL alone cannot be steered."""
    code, _, err = await shell.run("control", "--caddy-admin-url", "http://127.0.0.1:1")
    assert code == 2
    assert "profiles: none" in err


def test_durations_have_units() -> None:
    """A bare number is ambiguous."""
    assert [seconds(text) for text in ("90s", "30m", "1.5h")] == [90, 1800, 5400]
    for text in ("30", "", "m", "1d"):
        with pytest.raises(Misconfigured, match="write 90s, 30m or 2h"):
            seconds(text)
