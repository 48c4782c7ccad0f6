"""Write the generated pages of docs/ from what the code says: settings, verbs, named queries. A test holds them to it."""

import re
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer.main

from poascope.cli import cli
from poascope.settings import Settings

ROOT = Path(__file__).parents[1]
MADE = "<!-- Made by `make docs`; edit the code instead. -->\n"


def configuration() -> str:
    rows = ["| setting | variable | default | bounds | what it is |", "|---|---|---|---|---|"]
    for f in fields(Settings):
        meta = f.metadata
        bounds = ", ".join(meta["choices"]) or ("" if meta["low"] is None else f"{meta['low']:g} to {meta['high']:g}")
        default = "" if f.default in ("", ()) else f"`{f.default}`"
        variable = f"`{meta['env']}`" if meta["env"] else ""
        rows.append(f"| `{f.name}` | {variable} | {default} | {bounds} | {meta['help']} |")
    intro = (
        "# Configuration\n\n`poascope.toml` (or the file that `--config` or `POASCOPE_CONFIG` names), then the environment, then flags: "
        "later ones win.\nA list in the environment is split at commas. Variables that Dynamo uses itself keep Dynamo's names.\n\n"
    )
    return MADE + intro + "\n".join(rows) + "\n"


def verbs() -> str:
    intro = (
        "# Command line\n\nExit codes: 0 ok, 1 failed, 2 usage or configuration, 3 a dependency is unreachable, 130 stopped by Ctrl-C\n"
        "(`collect` and `record`, which end that way as a rule, then exit with 0).\n"
    )
    return MADE + intro + "".join(_verb(command, name, []) for name, command in sorted(_root().commands.items()))


def _root() -> Any:
    return typer.main.get_command(cli)


def _verb(command: Any, name: str, above: list[str]) -> str:
    path = [*above, name]
    if hasattr(command, "commands"):
        return "".join(_verb(inner, inner_name, path) for inner_name, inner in sorted(command.commands.items()))
    usage = " ".join(["poascope", *path, *(_argument(p) for p in command.params if p.param_type_name == "argument")])
    lines = [f"\n## `{usage}`\n", (command.help or "").strip(), ""]
    options = [p for p in command.params if p.param_type_name == "option" and p.name not in ("help", "config")]
    lines += [f"- `{' '.join([*p.opts, *p.secondary_opts])}` {(p.help or '').strip()}".rstrip() for p in options]
    return "\n".join(lines).rstrip() + "\n"


def _argument(p: Any) -> str:
    return p.name.upper() + ("..." if p.nargs == -1 else "")


def queries() -> str:
    """Each named query with the header of its SQL file."""
    parts = ["# Named queries\n\n`poascope query NAME` or `GET /query/NAME` of the read API. A bound that is left out is no bound.\n"]
    for file in sorted((ROOT / "queries" / "sql").glob("*.sql")):
        header = [line[2:].strip() for line in takewhile(lambda line: line.startswith("--"), file.read_text().splitlines())]
        parts.append(f"\n## `{file.stem}`\n\n" + "  \n".join(header) + "\n")
    return MADE + "".join(parts)


def architecture() -> str:
    """The hand-written tour, with the first line of every module's docstring in its list."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    before, after = text.split("<!-- modules -->")[0], text.split("<!-- /modules -->")[1]
    rows = ["| module | what it is |", "|---|---|"]
    for package in ("poascope", "testbed", "collectors", "store", "queries", "controller", "app"):
        for file in sorted((ROOT / package).rglob("*.py")):
            says = re.match(r'"""(.+?)("""|$)', file.read_text(), re.M)
            if says:
                rows.append(f"| `{file.relative_to(ROOT)}` | {says[1]} |")
    return f"{before}<!-- modules -->\n" + "\n".join(rows) + f"\n<!-- /modules -->{after}"


PAGES = {
    "ARCHITECTURE.md": architecture,
    "docs/configuration.md": configuration,
    "docs/cli.md": verbs,
    "docs/queries.md": queries,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())
