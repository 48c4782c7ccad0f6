import stat
from pathlib import Path

import pytest

from app.tokens import Throttle, Tokens
from poascope.errors import Misconfigured, PoascopeError


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "state" / "operators.json")


def test_only_hashes_are_kept_and_only_for_their_owner(tokens: Tokens) -> None:
    """The file has mode 0600 and nothing in it that signs in; equal secrets would have unequal hashes."""
    token = tokens.add("ann")
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert token.partition(":")[2] not in tokens.path.read_text()
    tokens.add("bob")
    assert len({record.salt for record in tokens.records().values()}) == 2


def test_a_token_names_its_operator(tokens: Tokens) -> None:
    """The right one only: not another's secret, not a part of it, not nothing."""
    ann, bob = tokens.add("ann"), tokens.add("bob")
    assert (tokens.verify(ann), tokens.verify(f" {bob}\n")) == ("ann", "bob")
    secret = ann.partition(":")[2]
    for wrong in ("", "ann", "ann:", ann[:-1], f"bob:{secret}", f"eve:{secret}", f"ANN:{secret}", "ann:" + "x" * 100_000):
        assert tokens.verify(wrong) is None


def test_one_name_one_token(tokens: Tokens) -> None:
    """A name has one token; another in its place ends the old one, and so does taking it away."""
    old = tokens.add("ann")
    with pytest.raises(PoascopeError, match="--renew"):
        tokens.add("ann")
    new = tokens.add("ann", renew=True)
    assert (tokens.verify(old), tokens.verify(new)) == (None, "ann")
    tokens.remove("ann")
    assert tokens.verify(new) is None
    with pytest.raises(PoascopeError, match="known: none"):
        tokens.remove("ann")


@pytest.mark.parametrize("name", ["", "a b", "a:b", "<img>", "x" * 65, "-ann"])
def test_names_are_plain(tokens: Tokens, name: str) -> None:
    """What could not stand in a token, a log line or a page is no name."""
    with pytest.raises(Misconfigured, match="a name is"):
        tokens.add(name)


def test_a_file_that_others_may_read_is_refused(tokens: Tokens) -> None:
    """Hashes that leaked are not trusted any more; the error says how to put it right."""
    token = tokens.add("ann")
    tokens.path.chmod(0o644)
    with pytest.raises(Misconfigured, match="chmod 600"):
        tokens.verify(token)
    tokens.path.chmod(0o600)
    tokens.path.write_text("{")
    with pytest.raises(Misconfigured, match="operators_file"):
        tokens.records()


def test_waits_double_for_an_address() -> None:
    """Three wrong tokens cost nothing, then 1 s, 2 s, 4 s … to a quarter of an hour; the right one, or an hour, ends it."""
    throttle, waits = Throttle(), []
    for _ in range(16):
        throttle.failed("10.0.0.1", 1000.0)
        waits.append(throttle.wait_s("10.0.0.1", 1000.0))
    assert waits[:6] == [0, 0, 1, 2, 4, 8]
    assert waits[-1] == 900
    assert throttle.wait_s("10.0.0.2", 1000.0) == 0
    assert throttle.wait_s("10.0.0.1", 1900.0) == 0
    throttle.failed("10.0.0.1", 6000.0)
    assert throttle.wait_s("10.0.0.1", 6000.0) == 0
    for _ in range(5):
        throttle.failed("10.0.0.1", 6000.0)
    throttle.succeeded("10.0.0.1")
    assert throttle.wait_s("10.0.0.1", 6000.0) == 0


def test_many_addresses_make_everybody_wait() -> None:
    """Guesses from everywhere are slowed for everywhere, a minute at most; what is remembered stays bounded."""
    throttle = Throttle()
    for n in range(30):
        throttle.failed(f"10.0.0.{n}", 1000.0)
    assert throttle.wait_s("10.9.9.9", 1000.0) == 60
    for n in range(Throttle.REMEMBERED + 10):
        throttle.failed(f"10.{n}", 1000.0)
    assert len(throttle._failures) <= Throttle.REMEMBERED
    assert throttle.wait_s("10.9.9.9", 1000.0) == 60
