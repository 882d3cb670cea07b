"""The documentation says what is true: its Python runs, its links lead somewhere, its lists are complete."""

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncrollout.cli.app import app
from tests.docs_page import EXCEPTIONS, PAGES, ROOT, blocks, reason_to_skip

TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
RUNNABLE = [page for page in PAGES if any(not reason_to_skip(page, block) for block in blocks(page))]
SUBPACKAGES = ("video", "config", "dropin.ragen", "dropin.verl_agent", "dropin.vagen", "dropin.rlinf", "dropin.metarl")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "envs"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.docs_page", str(page)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def test_every_exception_is_of_a_block_that_exists() -> None:
    for name, part in EXCEPTIONS:
        assert any(part in block.code for block in blocks(ROOT / name)), f"{name} has no block with {part!r}"


def links(page: Path) -> Iterator[str]:
    prose = re.sub(r"^( *)```.*?^\1```$|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"\]\(([^)\s]+)\)", prose)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        target, _, anchor = link.partition("#")
        if target.startswith("http"):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{name_of(page)}: {link}"
        assert not anchor or anchor in anchors(file), f"{name_of(page)}: {link} has no such heading"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}


def stubbed_names(package: str) -> set[str]:
    stub = ROOT / "asyncrollout" / package.replace(".", "/") / "__init__.pyi"
    nodes = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in nodes for alias in node.names}


@pytest.mark.parametrize("package", ["", *SUBPACKAGES])
def test_reference_has_every_public_name(package: str) -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    referred = set(re.findall(r"^::: asyncrollout\.([\w.]+)$", pages, re.MULTILINE))
    prefix = f"{package}." if package else ""
    missing = {
        name
        for name in stubbed_names(package)
        if prefix + name not in referred and not any(one.startswith(f"{prefix}{name}.") for one in referred)
    }
    assert not missing


def test_contributing_names_files_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"(?<![\w/.])((?:\w+/)+\w+\.(?:py|md|toml))", text))
    assert len(named) > 50
    missing = {name for name in named if not (ROOT / name).exists() and not (ROOT / "asyncrollout" / name).exists()}
    assert not missing


def test_contributing_has_the_layers_of_pyproject() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [set(re.split(r" *[|:] *", layer)) for layer in contracts[0]["layers"]]
    rows = re.findall(r"^\| \d+ \| (.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    reported = [set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", row))) for row in rows]
    assert reported == layers


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_ratios_are_quotients(page: str) -> None:
    rows = re.findall(r"\| ([\d.,]+) steps/s \| ([\d.,]+) steps/s \| ([\d.]+)x \|", (ROOT / page).read_text())
    assert len(rows) >= 5
    for ours, theirs, ratio in rows:
        quotient = float(ours.replace(",", "")) / float(theirs.replace(",", ""))
        assert quotient == pytest.approx(float(ratio), abs=0.5 * 10 ** -len(ratio.partition(".")[2]) + 1e-9)


@pytest.mark.parametrize("page", TEXTS, ids=name_of)
def test_commands_can_be_typed_as_they_stand(page: Path) -> None:
    text = page.read_text()
    shown = re.findall(r"^\$ (?:\S*/)?asyncrollout (.*)$", text, re.MULTILINE)
    shown += re.findall(r"`asyncrollout ([a-z][\w-]* [^`]*)`", text)
    for command in shown:
        tokens = [one for one in shlex.split(command, comments=True) if one not in ("--json", "--quiet", "--debug")]
        app.parse_args(tokens, exit_on_error=False, print_error=False)
