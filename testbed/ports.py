"""Who listens on a port, from /proc."""

import contextlib
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from poascope.errors import PoascopeError

LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that listens on a port; pid and name are None where /proc does not let us see it."""

    port: int
    pid: int | None
    name: str | None

    def __str__(self) -> str:
        return f"{self.port} by {self.name} (pid {self.pid})" if self.pid else f"{self.port} by another user's process"


def listeners() -> dict[int, int | None]:
    """Every listening TCP port of this machine and the pid behind it."""
    inode_of: dict[str, int] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(table).read_text().splitlines()[1:]:
                parts = line.split()
                if parts[3] == LISTENING:
                    inode_of[parts[9]] = int(parts[1].rsplit(":", 1)[1], 16)
    found: dict[int, int | None] = dict.fromkeys(inode_of.values())
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        # A process may end, or belong to someone else, while we look.
        with contextlib.suppress(OSError):
            for fd in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = str(fd.readlink())
                    if target.startswith("socket:[") and (port := inode_of.get(target[8:-1])) is not None:
                        found[port] = int(process.name)
    return found


def is_free(port: int) -> bool:
    """Whether a server may listen on the port, on loopback and on every address."""
    for address in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind((address, port))
            except OSError:
                return False
    return True


def taken(ports: Iterable[int]) -> list[Holder]:
    """Those of the ports that someone listens on, and who."""
    busy = [port for port in ports if not is_free(port)]
    if not busy:
        return []
    pids = listeners()
    holders = []
    for port in busy:
        pid = pids.get(port)
        name = None
        if pid:
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
        holders.append(Holder(port, pid, name))
    return holders


def require_free(ports: Iterable[int]) -> None:
    """Raise PoascopeError naming each taken port and its process."""
    wanted = sorted(ports)
    holders = taken(wanted)
    if not holders:
        return
    listed = ", ".join(str(holder) for holder in holders)
    raise PoascopeError(f"ports: {listed} - taken; stop that, or shift every port with --port-base {free_base()}")


def free_base() -> int:
    """The start of 200 free ports, below those that the kernel hands out by itself. Raises PoascopeError where there are none."""
    bases = list(range(12_000, 32_000, 200))
    # Two testbeds that start at the same time should not pick the same block.
    random.shuffle(bases)
    for base in bases:
        if all(is_free(port) for port in range(base, base + 200)):
            return base
    raise PoascopeError("ports: no 200 free ones in a row between 12000 and 32000 - stop something, or choose them with --port-base")
