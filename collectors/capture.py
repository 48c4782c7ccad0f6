"""Recordings: gzipped JSON lines in order of arrival. Lines whose `src` is not `nats`, `metrics` or `gap` are somebody else's."""

import gzip
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from poascope.errors import Misconfigured, PoascopeError

MAX_LINE = 64 * 2**20
MAX_JUMP_S = 86_400.0


class Line(msgspec.Struct, omit_defaults=True):
    """`t`: Unix seconds at the recorder. `data`: the raw payload (base64 in the file). A `gap` spans `since` to `until`."""

    t: float
    src: str
    subject: str | None = None
    data: bytes | None = None
    target: str | None = None
    body: str | None = None
    error: str | None = None
    kind: str | None = None
    since: float | None = None
    until: float | None = None
    count: int | None = None


class _Source(msgspec.Struct):
    src: str


_line = msgspec.json.Decoder(Line)
_source = msgspec.json.Decoder(_Source)
_encode = msgspec.json.Encoder().encode


class Reader:
    """The lines of a recording; `counts` says afterwards what was skipped, `truncated` where the file broke off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.truncated: str | None = None
        if not path.is_file():
            raise Misconfigured(f"capture: {path} - " + ("a folder; name the recordings in it" if path.is_dir() else "no such file"))

    def sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def __iter__(self) -> Iterator[Line]:
        with self.path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
            yield from self._in_time(self._parsed(stream))

    def _parsed(self, stream: Any) -> Iterator[Line]:
        while text := self._next(stream):
            self.counts["lines"] += 1
            if line := self._parse(text):
                yield line

    def _in_time(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Without lines whose time is more than a day off: one broken clock or digit would age everything that is under way.
        Where the next line agrees with such a one, time did move on."""
        at: float | None = None
        doubted: Line | None = None
        for line in lines:
            if at is not None and abs(line.t - at) <= MAX_JUMP_S:
                if doubted is not None:
                    self.counts["absurd time"] += 1
                    doubted = None
            elif doubted is not None and abs(line.t - doubted.t) <= MAX_JUMP_S:
                yield doubted
                doubted = None
            else:
                if doubted is not None:
                    self.counts["absurd time"] += 1
                doubted = line
                continue
            at = line.t
            yield line
        if doubted is not None and at is None:
            yield doubted
        elif doubted is not None:
            self.counts["absurd time"] += 1

    def _next(self, stream: Any) -> bytes:
        try:
            return bytes(stream.readline(MAX_LINE))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.truncated = str(error) or "unexpected end"
            return b""

    def _parse(self, text: bytes) -> Line | None:
        try:
            line = _line.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            line = None
        if line is not None and line.src in ("nats", "metrics", "gap") and _possible(line):
            return line
        try:
            # A client's or a phase's line has fields of its own shape: told from a damaged one by its source alone.
            source = _source.decode(text).src
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            source = "nats"
        self.counts["damaged" if source in ("nats", "metrics", "gap") else f"skipped {source[:40]}"] += 1
        return None


def _possible(line: Line) -> bool:
    """Whether the store can hold its times and its count."""
    times = (line.t, line.since or 0.0, line.until or 0.0)
    return all(0 <= t < 2**33 for t in times) and 0 <= (line.count or 0) < 2**63


class Recorder:
    """Writes a recording; whoever drives it calls `flush` now and then."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, 0
        try:
            self._file = gzip.GzipFile(path, "xb", compresslevel=6)
        except FileExistsError as error:
            raise Misconfigured(f"record: {path} - exists already; name another file or remove it") from error
        except OSError as error:
            raise Misconfigured(f"record: {path} - cannot be written ({error.strerror})") from error

    def write(self, line: Line) -> None:
        try:
            self._file.write(_encode(line) + b"\n")
        except OSError as error:
            raise self._failed(error) from error
        self.lines += 1

    def flush(self) -> None:
        """Bring to the file what was written so far; what a kill leaves is then readable up to here."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> PoascopeError:
        return PoascopeError(f"record: {self.path} - {error.strerror}; what was flushed before is kept")

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()
        if kind is not None and not self.lines:
            # Nothing was heard: the name stays free for the next attempt.
            self.path.unlink()
