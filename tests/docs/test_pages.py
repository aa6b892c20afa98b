"""The pages of docs/ do what they say: their programs run, and print what is shown."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import DATABASE, NATS, Page
from tests.docs.readme import README
from tests.environments import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
PROSE = {"guarantees.md", "settings.md"}
"""Pages without a program, or with a test of their own."""


@pytest.mark.timeout(900)  # grpcurl is built on first use, and a2a-sdk installed
@pytest.mark.parametrize(
    "path",
    [README, *(path for path in PAGES if path.name not in PROSE)],
    ids=lambda path: path.name,
)
def test_what_a_page_shows_is_what_happens(
    path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    services = {}
    if DATABASE in path.read_text(encoding="utf-8"):
        services[DATABASE] = request.getfixturevalue("postgres")
        services[NATS] = request.getfixturevalue("nats_url")
    with Page(path, tmp_path, services) as page:
        assert page.run() > 0


@pytest.mark.parametrize("path", [README, *PAGES], ids=lambda path: path.name)
def test_every_link_of_a_page_leads_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if file.startswith("https://"):
            continue
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            known = {re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings}
            assert anchor in known, target


def test_every_extra_that_a_page_installs_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    for path in [README, *PAGES]:
        for named in re.findall(r"a2a-grpc\[([\w,-]+)\]", path.read_text(encoding="utf-8")):
            for extra in named.split(","):
                assert extra in extras, f"{path.name} names {named}"
