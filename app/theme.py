"""The look, once: colours by quantity, bands by regime, and what Streamlit and Plotly are told. Light and dark are each chosen.

Quantities keep their colour on every page. Hues stay apart under red-green blindness (blue, ochre, violet, teal, vermilion);
where two lines are close, the dash differs as well.
"""

from dataclasses import dataclass
from typing import Any

FONT = '"Source Sans", "Source Sans 3", system-ui, sans-serif'


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    name: str
    background: str
    panel: str
    ink: str
    muted: str
    rule: str
    grid: str
    mark: str
    accent: str
    alarm: str
    warn: str
    colour: dict[str, str]
    band: dict[str, str]
    decode: tuple[str, ...]
    prefill: tuple[str, ...]


LIGHT = Theme(
    name="light",
    background="#f6f6f3",
    panel="#fdfdfc",
    ink="#20262b",
    muted="#666f77",
    rule="#dcdfdd",
    grid="#e9ebe9",
    mark="#a9b1b7",
    accent="#1c6296",
    alarm="#b83a22",
    warn="#9a6200",
    colour={
        "poa": "#0d7468",
        "poa_ttft": "#b8690b",
        "poa_frozen": "#8a7a9e",
        "ttft_p50": "#93bddc",
        "ttft_p90": "#4a92c7",
        "ttft_p99": "#0c5187",
        "ttft_censored": "#c0472c",
        "ttft_prometheus": "#7c828a",
        "itl_p50": "#b9a5d8",
        "itl_p99": "#65469b",
        "kv_hit": "#55791d",
        "kv_possible": "#0d7468",
        "kv_realised": "#9a6200",
        "inflight": "#3b4a54",
        "knee": "#8a9299",
        "queued": "#c0472c",
        "arrivals": "#93bddc",
        "finished": "#1c6296",
        "prefill_queue_s": "#b8690b",
        "imbalance_s": "#0c5187",
        "cache_miss_s": "#55791d",
        "transfer_s": "#65469b",
        "other_s": "#8a9299",
    },
    band={
        "below": "rgba(13,116,104,0.05)",
        "transition": "rgba(222,156,24,0.15)",
        "saturated": "rgba(192,71,44,0.15)",
        "unknown": "rgba(105,115,124,0.11)",
        "no requests": "rgba(105,115,124,0.06)",
    },
    decode=("#0c5187", "#3f8fc6", "#8fbcdd", "#274b66", "#6aa9b8", "#58708a"),
    prefill=("#b8690b", "#e0a04a", "#7d4a0c", "#cf8730"),
)

DARK = Theme(
    name="dark",
    background="#101417",
    panel="#161b1f",
    ink="#dde3e7",
    muted="#8f9aa3",
    rule="#2a3137",
    grid="#20272c",
    mark="#566069",
    accent="#7db8e3",
    alarm="#f08a70",
    warn="#e3b04f",
    colour={
        "poa": "#57c6b7",
        "poa_ttft": "#e6a355",
        "poa_frozen": "#a597b8",
        "ttft_p50": "#42698a",
        "ttft_p90": "#5f9cca",
        "ttft_p99": "#b2d8f5",
        "ttft_censored": "#f08a70",
        "ttft_prometheus": "#98a1a9",
        "itl_p50": "#75639a",
        "itl_p99": "#c3aeea",
        "kv_hit": "#a5c76c",
        "kv_possible": "#57c6b7",
        "kv_realised": "#e3b04f",
        "inflight": "#c2ccd4",
        "knee": "#7d8890",
        "queued": "#f08a70",
        "arrivals": "#42698a",
        "finished": "#7db8e3",
        "prefill_queue_s": "#e6a355",
        "imbalance_s": "#7db8e3",
        "cache_miss_s": "#a5c76c",
        "transfer_s": "#c3aeea",
        "other_s": "#7d8890",
    },
    band={
        "below": "rgba(87,198,183,0.05)",
        "transition": "rgba(227,176,79,0.13)",
        "saturated": "rgba(240,118,88,0.16)",
        "unknown": "rgba(150,160,170,0.12)",
        "no requests": "rgba(150,160,170,0.06)",
    },
    decode=("#b2d8f5", "#6fafdd", "#3f7cab", "#8fc7cf", "#5d8fb0", "#d5e6f2"),
    prefill=("#e6a355", "#f3cd95", "#b9772a", "#d99040"),
)

THEMES = {theme.name: theme for theme in (LIGHT, DARK)}


def streamlit_options() -> dict[str, Any]:
    """Streamlit configuration: quiet, no telemetry, no watching of files, our colours in both themes."""
    options: dict[str, Any] = {
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "stacktrace",
        "server.fileWatcherType": "none",
        "server.headless": True,
        "server.enableXsrfProtection": True,
        "runner.magicEnabled": False,
        "theme.baseRadius": "4px",
        "theme.baseFontSize": 15,
    }
    for theme in THEMES.values():
        options |= {
            f"theme.{theme.name}.backgroundColor": theme.background,
            f"theme.{theme.name}.secondaryBackgroundColor": theme.rule,
            f"theme.{theme.name}.textColor": theme.ink,
            f"theme.{theme.name}.primaryColor": theme.accent,
            f"theme.{theme.name}.borderColor": theme.rule,
            f"theme.{theme.name}.sidebar.backgroundColor": theme.panel,
            f"theme.{theme.name}.sidebar.secondaryBackgroundColor": theme.background,
        }
    return options


def variables(theme: Theme) -> str:
    """The colours the live component's stylesheet names, as CSS custom properties."""
    pairs = {
        "ground": theme.background,
        "panel": theme.panel,
        "ink": theme.ink,
        "muted": theme.muted,
        "rule": theme.rule,
        "grid": theme.grid,
        "accent": theme.accent,
        "alarm": theme.alarm,
        "warn": theme.warn,
    }
    pairs |= {f"regime-{name.replace(' ', '-')}": colour for name, colour in theme.band.items()}
    pairs |= {f"q-{name.replace('_', '-')}": colour for name, colour in theme.colour.items()}
    return "".join(f"--pw-{name}:{value};" for name, value in pairs.items())
