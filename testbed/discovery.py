"""Dynamo's file discovery, read from outside: which worker instances are registered, and whether the kernel has room for its watches."""

import contextlib
import ctypes
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from poascope.errors import PoascopeError
from testbed.ports import listeners


def worker_instances(folder: Path) -> dict[str, int]:
    """Instance id (u64 as text) to the TCP port on which it takes requests, for each whole registration of a worker.

    A worker counts when both its instance and its model card can be parsed: a frontend that reads either half-written misses it.
    """
    cards = {str(card["instance_id"]) for card in _documents(folder / "v1" / "mdc") if card.get("type") == "Model"}
    found = {}
    for document in _documents(folder / "v1" / "instances"):
        instance = str(document.get("instance_id"))
        address = re.fullmatch(r"[\d.]+:(\d+)(/.*)?", str((document.get("transport") or {}).get("tcp", "")))
        if document.get("endpoint") == "generate" and instance in cards and address:
            found[instance] = int(address[1])
    return found


def _documents(folder: Path) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        # Dynamo writes in place and deletes at will: what cannot be read now is read on the next call.
        with contextlib.suppress(OSError, msgspec.DecodeError):
            if path.is_file():
                documents.append(msgspec.json.decode(path.read_bytes(), type=dict[str, Any]))
    return documents


def worker_of_pid(folder: Path) -> dict[int, str]:
    """Pid to the instance id of the worker that this process serves."""
    pids = listeners()
    return {pid: instance for instance, port in worker_instances(folder).items() if (pid := pids.get(port))}


def require_watches(count: int) -> None:
    """Raise PoascopeError where the kernel has not that many inotify instances left: without them Dynamo overlooks workers in silence."""
    libc, opened = ctypes.CDLL(None, use_errno=True), list[int]()
    try:
        while len(opened) < count and (instance := libc.inotify_init()) >= 0:
            opened.append(instance)
    finally:
        for instance in opened:
            os.close(instance)
    if len(opened) < count:
        limit = Path("/proc/sys/fs/inotify/max_user_instances")
        most = limit.read_text().strip() if limit.exists() else "unknown"
        raise PoascopeError(
            f"inotify: {len(opened)} instances left of {most}, Dynamo's file discovery needs {count} - stop another testbed, or "
            "sysctl -w fs.inotify.max_user_instances=1024"
        )
