"""The operators' tokens: each has a name and is shown once; a file that only its owner may read keeps salted hashes of them."""

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from poascope.errors import Misconfigured, PoascopeError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
# 16 MiB and some 40 ms a try; the secret is 192 random bits, so this is for a file that was stolen, not for guessing online.
COST = {"n": 2**14, "r": 8, "p": 1}


class Record(msgspec.Struct, frozen=True):
    """What the file keeps of one token. `salt` and `hash` in hex, `made_at` in Unix s."""

    salt: str
    hash: str
    made_at: float


def _hashed(secret: str, salt: str) -> str:
    return hashlib.scrypt(secret.encode(), salt=bytes.fromhex(salt), **COST).hex()


NOBODY = Record(salt="00" * 16, hash=secrets.token_hex(64), made_at=0)  # what an unknown name is compared with: it takes as long


class Tokens:
    """The file. It is read anew each time, so what another process adds or removes counts at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def records(self) -> dict[str, Record]:
        """By name. Raises Misconfigured when others may read the file, or nobody can."""
        try:
            if (mode := self.path.stat().st_mode & 0o777) & 0o077:
                raise Misconfigured(f"operators_file: {self.path} - has mode {mode:o}, so others may read it; chmod 600 it")
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, Record])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise Misconfigured(f"operators_file: {self.path} - {error}") from error

    def add(self, name: str, *, renew: bool = False, now: Callable[[], float] = time.time) -> str:
        """The new token, which nobody can read again. Raises PoascopeError when the name has one already, unless it is to be renewed."""
        if not NAME.fullmatch(name):
            raise Misconfigured(f"operator: {name!r} - a name is up to 64 letters, digits or . _ @ + -")
        secret, salt = secrets.token_urlsafe(24), secrets.token_hex(16)
        with self._changing() as records:
            if name in records and not renew:
                raise PoascopeError(f"operator: {name} - has a token already; `poascope operator add {name} --renew` makes another")
            records[name] = Record(salt, _hashed(secret, salt), now())
        return f"{name}:{secret}"

    def remove(self, name: str) -> None:
        """Whoever is signed in by this token is not any more. Raises PoascopeError when there is none."""
        with self._changing() as records:
            if name not in records:
                raise PoascopeError(f"operator: {name} - has no token in {self.path}; known: {', '.join(records) or 'none'}")
            del records[name]

    def verify(self, token: str) -> str | None:
        """The name of the operator whose token this is."""
        name, _, secret = token.strip().partition(":")
        known = self.records().get(name, NOBODY)
        return name if hmac.compare_digest(_hashed(secret[:200], known.salt), known.hash) else None

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Record]]:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                records = self.records()
                yield records
                fresh = self.path.with_suffix(f".{os.getpid()}")
                fresh.unlink(missing_ok=True)
                with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(msgspec.json.format(msgspec.json.encode(records)))
                fresh.replace(self.path)
        except OSError as error:
            raise Misconfigured(f"operators_file: {self.path} - {error.strerror}; name another place for it") from error


class Throttle:
    """How long a remote address must wait after wrong tokens, and how long everybody must: it doubles with each. Times in Unix s."""

    ADDRESS, EVERYBODY = (3, 900.0), (20, 60.0)  # failures that cost nothing, and the longest wait in seconds
    FORGOTTEN_S = 3600.0
    REMEMBERED = 10_000

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def wait_s(self, address: str, now: float) -> float:
        return max(self._left(address, now, *self.ADDRESS), self._left("", now, *self.EVERYBODY))

    def failed(self, address: str, now: float) -> None:
        for key in (address, ""):
            count, at = self._failures.pop(key, (0, now))
            self._failures[key] = (1 if now - at > self.FORGOTTEN_S else count + 1), now
        while len(self._failures) > self.REMEMBERED:
            del self._failures[next(iter(self._failures))]

    def succeeded(self, address: str) -> None:
        self._failures.pop(address, None)

    def _left(self, key: str, now: float, free: int, longest_s: float) -> float:
        count, at = self._failures.get(key, (0, now))
        return max(0.0, at + min(longest_s, 2.0 ** min(count - free, 30)) - now) if count >= free else 0.0
