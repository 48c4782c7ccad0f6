import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = runpy.run_path(str(ROOT / "scripts" / "docs.py"))["PAGES"]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_generated_pages_are_current(name: str) -> None:
    """What docs/ says of settings, verbs and queries is what the code says; a stale page is written anew, so that the diff shows it."""
    page = ROOT / name
    said, is_so = page.read_text() if page.exists() else "", PAGES[name]()
    if said != is_so:
        page.write_text(is_so)
    assert said == is_so


@pytest.mark.parametrize("page", [p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]])
def test_links_lead_somewhere(page: str) -> None:
    """Every relative link and picture of the docs exists."""
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not re.match(r"[a-z]+:", target):
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_readme_names_verbs_that_exist() -> None:
    """Each `poascope VERB` and `make TARGET` in the README is one; "poascope is" in a sentence is none."""
    readme = (ROOT / "README.md").read_text()
    known = (ROOT / "docs" / "cli.md").read_text()
    code = [block or span for block, span in re.findall(r"```sh\n(.*?)```|`([^`\n]+)`", readme, re.S)]
    for verb in re.findall(r"^\S*poascope ([a-z]+(?: (?:up|down|load|set|show|cancel)\b)?)", "\n".join(code), re.M):
        assert f"`poascope {verb}" in known or f"`poascope {verb.split()[0]}" in known, verb
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for target in re.findall(r"make ([a-z]+)", readme):
        assert target in targets, target
