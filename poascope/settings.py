"""Every setting, once: name, default, bounds, help and the environment variable that sets it.

`poascope.toml`, then the environment, then flags. The command line, docs/configuration.md and the tests read this table.
"""

import getpass
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from poascope.errors import Misconfigured
from poascope.nats import Nats


@dataclass(frozen=True, slots=True)
class Profile:
    """A frontend with fixed routing parameters, one of several behind the gateway."""

    name: str
    tau: float
    omega: float
    url: str


def setting(
    default: Any,
    help: str,
    *,
    secret: bool = False,
    env: str = "",
    flag: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    meta = {"help": help, "secret": secret, "env": env, "flag": flag, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    nats_url: str = setting("nats://127.0.0.1:4222", "NATS server that Dynamo's event plane uses.", env="NATS_SERVER", flag="--nats")
    nats_credentials: str = setting("", "NATS credentials file (.creds).", env="POASCOPE_NATS_CREDENTIALS", secret=True)
    nats_username: str = setting("", "User of the NATS server, unless the URL names one.", env="NATS_AUTH_USERNAME")
    nats_password: str = setting("", "Password of nats_username.", env="NATS_AUTH_PASSWORD", secret=True)
    nats_token: str = setting("", "Token of the NATS server, where it asks for one.", env="NATS_AUTH_TOKEN", secret=True)
    nats_tls_ca: str = setting(
        "", "Certificate authority of the NATS server (PEM), when the system does not know it.", env="POASCOPE_NATS_TLS_CA"
    )
    nats_tls_cert: str = setting("", "Our certificate (PEM), where the server asks for one.", env="POASCOPE_NATS_TLS_CERT")
    nats_tls_key: str = setting("", "Key of nats_tls_cert (PEM).", env="POASCOPE_NATS_TLS_KEY")
    namespaces: tuple[str, ...] = setting((), "Dynamo namespaces to watch; empty: all that are heard.", env="DYN_NAMESPACE")
    prometheus_url: str = setting(
        "", "Prometheus server to read metrics from; empty: scrape the targets.", env="PROMETHEUS_URL", flag="--prometheus"
    )
    scrape: tuple[str, ...] = setting((), "Base URLs whose /metrics are scraped when there is no Prometheus.", env="POASCOPE_SCRAPE")
    scrape_interval_s: float = setting(5.0, "Seconds between two reads of the metrics.", env="POASCOPE_SCRAPE_INTERVAL_S", low=1, high=60)
    store: str = setting("poascope.duckdb", "The DuckDB file; one process writes it.", env="POASCOPE_STORE")
    retain_raw_days: float = setting(
        7.0, "Days that raw rows are kept; older spans are answered from rollups.", env="POASCOPE_RETAIN_RAW_DAYS", low=0.05, high=3650
    )
    retain_raw_gb: float = setting(
        20.0,
        "GB in use in the store's file past which the oldest raw rows go earlier.",
        env="POASCOPE_RETAIN_RAW_GB",
        low=0.05,
        high=100_000,
    )
    retain_rollup_days: float = setting(
        400.0,
        "Days that rollups of 1 min, decisions, gaps and incidents are kept (rollups of 10 s: a tenth of it).",
        env="POASCOPE_RETAIN_ROLLUP_DAYS",
        low=1,
        high=36_500,
    )
    api_host: str = setting("127.0.0.1", "Address the read API binds.", env="POASCOPE_API_HOST")
    api_port: int = setting(8600, "Port of the read API.", env="POASCOPE_API_PORT", low=0, high=65535)
    api_token: str = setting("", "Token of the read API; required off loopback.", env="POASCOPE_API_TOKEN", secret=True)
    dash_host: str = setting("127.0.0.1", "Address the dashboard binds.", env="POASCOPE_DASH_HOST")
    dash_port: int = setting(8501, "Port of the dashboard.", env="POASCOPE_DASH_PORT", low=0, high=65535)
    dash_token: str = setting("", "Token of the dashboard; required off loopback.", env="POASCOPE_DASH_TOKEN", secret=True)
    window_s: float = setting(30.0, "Seconds of finished requests an estimate looks at.", env="POASCOPE_WINDOW_S", low=5, high=600)
    lost_after_s: float = setting(300.0, "A request silent for this long ends as lost.", env="POASCOPE_LOST_AFTER_S", low=10, high=86400)
    slo_ttft_s: float = setting(1.0, "TTFT P99 objective, drawn on the charts.", env="POASCOPE_SLO_TTFT_S", low=0.001, high=600)
    slo_itl_s: float = setting(0.05, "ITL P99 objective, drawn on the charts.", env="POASCOPE_SLO_ITL_S", low=0.001, high=60)
    preset: str = setting(
        "70b",
        "Regime thresholds: the paper's 70b (0.3 s, 2 s) or 340b (1 s, 10 s), or learn: 2 and 12 times the unsaturated TTFT P99.",
        env="POASCOPE_PRESET",
        choices=("70b", "340b", "learn"),
    )
    regime_source: str = setting(
        "censored",
        "TTFT P99 that the regime is judged by: censored (those still waiting count), events (first tokens only) or "
        "prometheus (buckets over 60 s, as the paper's controller saw it).",
        env="POASCOPE_REGIME_SOURCE",
        choices=("censored", "events", "prometheus"),
    )
    alarm_signal: str = setting(
        "headroom",
        "Signal of the early warning: headroom, poa_ttft, poa_hat or ttft_ewma.",
        env="POASCOPE_ALARM_SIGNAL",
        choices=("headroom", "poa_ttft", "poa_hat", "ttft_ewma"),
    )
    caddy_admin_url: str = setting(
        "",
        "Admin API of the Caddy gateway that the controller steers; empty: no actuator.",
        env="POASCOPE_CADDY_ADMIN_URL",
    )
    gateway_namespace: str = setting(
        "", "Dynamo namespace behind the gateway; needed when several are heard.", env="POASCOPE_GATEWAY_NAMESPACE"
    )
    lease_s: float = setting(
        120.0,
        "Seconds for which an actuator follows a target that the controller no longer renews; then safe parameters.",
        env="POASCOPE_LEASE_S",
        low=15,
        high=86400,
    )
    safe_tau: float = setting(0.0, "τ that an actuator goes back to when the lease has run out.", env="POASCOPE_SAFE_TAU", low=0, high=10)
    safe_omega: float = setting(
        1.0, "ω that an actuator goes back to when the lease has run out.", env="POASCOPE_SAFE_OMEGA", low=0, high=10
    )
    min_dwell_s: float = setting(
        10.0, "Least seconds between two automatic changes of the parameters.", env="POASCOPE_MIN_DWELL_S", low=0, high=600
    )
    max_switches: int = setting(
        6, "Most automatic changes of the parameters within ten minutes.", env="POASCOPE_MAX_SWITCHES", low=0, high=100
    )
    operator: str = setting("", "Who signs an override; default: the user running the process.", env="POASCOPE_OPERATOR")
    operators: tuple[str, ...] = setting(
        (), "Who may send overrides when logged in by OIDC: verified email addresses, or sub:SUBJECT.", env="POASCOPE_OPERATORS"
    )
    oidc_url: str = setting("", "OpenID Connect provider that people log in at; empty: none.", env="POASCOPE_OIDC_URL")
    oidc_client_id: str = setting("", "Client that the provider knows the dashboard by.", env="POASCOPE_OIDC_CLIENT_ID")
    oidc_client_secret: str = setting("", "Secret of that client.", env="POASCOPE_OIDC_CLIENT_SECRET", secret=True)
    dash_url: str = setting(
        "", "Address at which browsers open the dashboard; default: http://dash_host:dash_port.", env="POASCOPE_DASH_URL"
    )
    operators_file: str = setting(
        "",
        "Hashes of the operators' tokens; default: poascope/operators.json in $XDG_STATE_HOME (~/.local/state).",
        env="POASCOPE_OPERATORS_FILE",
    )
    profiles: tuple[Profile, ...] = setting((), "Frontends behind the gateway with their τ and ω ([[profiles]] in the file).")

    @property
    def operator_name(self) -> str:
        return self.operator or getpass.getuser()

    @property
    def nats(self) -> Nats:
        return Nats(
            self.nats_url,
            self.nats_username,
            self.nats_password,
            self.nats_token,
            self.nats_credentials,
            self.nats_tls_ca,
            self.nats_tls_cert,
            self.nats_tls_key,
        )

    @property
    def dash_address(self) -> str:
        host = f"[{self.dash_host}]" if ":" in self.dash_host else self.dash_host
        return self.dash_url.rstrip("/") or f"http://{host}:{self.dash_port}"

    @property
    def operators_path(self) -> Path:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        return Path(self.operators_file) if self.operators_file else state / "poascope" / "operators.json"


def _convert(name: str, kind: Any, value: Any) -> Any:
    try:
        if kind == tuple[str, ...]:
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(part.strip() for part in parts if part.strip())
        if kind == tuple[Profile, ...]:
            return tuple(Profile(str(p["name"]), float(p["tau"]), float(p["omega"]), str(p["url"]).rstrip("/")) for p in value)
        return kind(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Misconfigured(f"{name}: {value!r} - not a valid value ({error})") from error


def to_env(settings: Settings) -> dict[str, str]:
    """The environment in which another process of ours loads these settings (profiles travel in the file only)."""
    found = {}
    for f in fields(Settings):
        value = getattr(settings, f.name)
        if f.metadata["env"]:
            found[f.metadata["env"]] = ",".join(value) if isinstance(value, tuple) else str(value)
    return found


def load(path: Path | None = None, env: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings from the file, the environment and flags, later ones winning. Raises Misconfigured.

    Without a path, POASCOPE_CONFIG names the file, else ./poascope.toml is read where it exists.
    """
    given: dict[str, Any] = {}
    named = path or (Path(env["POASCOPE_CONFIG"]) if env.get("POASCOPE_CONFIG") else None)
    file = named or Path("poascope.toml")
    if named and not file.is_file():
        raise Misconfigured(f"config: {file} - no such file")
    known = {f.name: f for f in fields(Settings)}
    if file.is_file():
        try:
            given = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Misconfigured(f"config: {file} - {error}") from error
        for name in given:
            if name not in known:
                raise Misconfigured(f"config: {name} - no such setting in {file}; known: {', '.join(known)}")
    for name, f in known.items():
        variable = f.metadata["env"]
        if variable and env.get(variable):
            given[name] = env[variable]
    given |= {name: value for name, value in (flags or {}).items() if value is not None}
    converted = {name: _convert(name, known[name].type, value) for name, value in given.items()}
    for name, value in converted.items():
        meta = known[name].metadata
        low, high, choices = meta["low"], meta["high"], meta["choices"]
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            raise Misconfigured(f"{name}: {value} - must be within {low} and {high}")
        if choices and value not in choices:
            raise Misconfigured(f"{name}: {value} - must be one of {', '.join(choices)}")
    return Settings(**converted)
