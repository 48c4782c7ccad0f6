"""Lost messages, told from reordered and repeated ones by the publishers' own counters."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

WINDOW_S = 1.0
MAX_STREAMS = 4096
# A jump further than this is a counter that started anew, not this many lost messages.
MAX_JUMP = 100_000
UNTOLD = 256


class Stream(NamedTuple):
    """Whatever shares one counter. `pool` tells counters apart that share publisher and subject; "" is not known yet which of them."""

    deployment: str
    subject: str
    publisher: int | None
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """`count` messages of one stream that were published after `since` and not heard by `until` (Unix seconds)."""

    stream: Stream
    count: int
    since: float
    until: float


@dataclass(slots=True)
class _Stream:
    first: int
    highest: int
    heard_at: float
    # Each hole: the ids still missing in it, when the message before it and the one after it were heard.
    holes: list[tuple[set[int], float, float]] = field(default_factory=list)


class LossMeter:
    """Feed every counter heard; `advance` returns what stayed missing for longer than the reorder window.

    Where several replicas count separately under one name (0.9), the ids repeat: a copy
    fills the hole of another, so what is reported there is a lower bound, never a false alarm.
    """

    def __init__(self) -> None:
        self._streams: OrderedDict[Stream, _Stream] = OrderedDict()
        self._open: set[Stream] = set()
        # Numbers of a pool not known yet, by the stream without its pool: the first word on a worker comes before its first request.
        self._untold: OrderedDict[Stream, deque[int]] = OrderedDict()

    def heard(self, stream: Stream, number: int, at: float) -> None:
        if stream.pool == "":
            self._untold.setdefault(stream, deque(maxlen=UNTOLD)).append(number)
            if len(self._untold) > MAX_STREAMS:
                self._untold.popitem(last=False)
            return
        known = self._streams.get(stream)
        if known is None or abs(number - known.highest) > MAX_JUMP:
            self._streams[stream] = _Stream(number, number, at)
            self._streams.move_to_end(stream)
            if len(self._streams) > MAX_STREAMS:
                dropped, _ = self._streams.popitem(last=False)
                self._open.discard(dropped)
            return
        if number == known.highest + 1:
            known.highest = number
        elif number > known.highest:
            known.holes.append((set(range(known.highest + 1, number)), known.heard_at, at))
            self._open.add(stream)
            known.highest = number
        else:
            for missing, _, _ in known.holes:
                missing.discard(number)
        known.heard_at = at

    def advance(self, now: float) -> list[Loss]:
        lost: list[Loss] = []
        for stream in sorted(self._open, key=repr):
            known = self._streams[stream]
            late = [hole for hole in known.holes if hole[2] + WINDOW_S <= now]
            for missing, _, _ in late:
                missing.difference_update(self._untold.get(stream._replace(pool=""), ()))
            known.holes = [hole for hole in known.holes if hole[2] + WINDOW_S > now]
            lost += [Loss(stream, len(missing), since, until) for missing, since, until in late if missing]
            if not known.holes:
                self._open.discard(stream)
        return lost
