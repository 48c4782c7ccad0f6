"""Readiness that means something: chat requests that came to their end, and the workers that served them."""

import contextlib
import json
import random
import time
from typing import Any

import httpx
import msgspec

from testbed.model import WORDS


def _body(model: str, max_tokens: int, rng: random.Random) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": " ".join(rng.choices(WORDS, k=24))}],
        "max_tokens": max_tokens,
        "stream": True,
        "ignore_eos": True,
        # 0.9 tells the workers only where the timing is asked for too.
        "nvext": {"extra_fields": ["worker_id", "timing"]},
    }


def complete(client: httpx.Client, base_url: str, model: str) -> str | None:
    """Ask for a short answer and read it to the end. None when it came whole, else what went wrong."""
    try:
        with client.stream("POST", f"{base_url}/v1/chat/completions", json=_body(model, 2, random.Random())) as response:
            text = response.read().decode(errors="replace")
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    if response.status_code != 200:
        return f"HTTP {response.status_code}: {text[:200].strip()}"
    return None if "data: [DONE]" in text else f"the answer was cut: {text[-200:].strip()}"


def workers_used(client: httpx.Client, base_url: str, model: str, streams: int) -> set[str]:
    """Ids of the workers that serve when `streams` answers are open at once: load makes any router spread."""
    rng = random.Random()
    seen: set[str] = set()
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(streams):
            body = _body(model, 24, rng)
            response = stack.enter_context(client.stream("POST", f"{base_url}/v1/chat/completions", json=body))
            lines = response.iter_lines()
            for line in lines:
                if line.startswith("data: {"):
                    found = (msgspec.json.decode(line[6:]).get("nvext") or {}).get("worker_id") or {}
                    seen |= {str(value) for key, value in found.items() if key.endswith("worker_id")}
                    break
            opened.append(lines)
        for lines in opened:
            for _ in lines:
                pass
    return seen


def workers_known(client: httpx.Client, base_url: str, wanted: set[str], timeout_s: float = 10) -> set[str]:
    """Ids of the workers that a router may choose from, once it has all that are wanted, or what it has when time is up."""
    known: set[str] = set()
    deadline = time.monotonic() + timeout_s
    while not wanted <= known and time.monotonic() < deadline:
        time.sleep(0.1 if known else 0)
        with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError):
            answer = client.get(f"{base_url}/engine/poascope").json()
            known = {worker for workers in (answer.get("workers") or {}).values() for worker in workers}
    return known


def nats_ready(client: httpx.Client, monitor_port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError):
        answer = client.get(f"http://127.0.0.1:{monitor_port}/healthz", params={"js-enabled-only": "true"})
        return answer.status_code == 200 and answer.json().get("status") == "ok"
    return False
