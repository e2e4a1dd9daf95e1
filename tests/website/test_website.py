"""The site: its navigation, its links, its commands, its English, its tutorials, and the errors that it explains."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "website"))

import check  # noqa: E402
import commands  # noqa: E402
import pages  # noqa: E402
import prose  # noqa: E402
import reference  # noqa: E402
import tutorials  # noqa: E402

TUTORIALS = sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.ipynb"))


def test_the_navigation_names_every_page_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(check.navigation_problems()) == []
    named = pages.navigation()
    monkeypatch.setattr(check, "navigation", lambda: [*named[1:], "nowhere.md"])
    assert list(check.navigation_problems()) == [
        f"mkdocs.yml: the navigation lacks {named[0]}",
        "mkdocs.yml: nowhere.md is no page",
    ]


def test_no_link_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(check.link_problems()) == []
    text_of = pages.text_of
    bad = "[a](vertex.md#nothing) `[b](c.md)` [d](gone.md) [e](vertex.md#a-run)"
    monkeypatch.setattr(check, "text_of", lambda page: bad if page == "docs/start.md" else text_of(page))
    assert list(check.link_problems()) == [
        "docs/start.md:1: vertex.md#nothing: there is no such heading",
        "docs/start.md:1: gone.md: there is no such file",
    ]


def test_every_command_of_a_page_is_one_of_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(check.command_problems()) == []
    text_of = pages.text_of
    bad = (
        "```\n$ gpu-pipelines run x.py \\\n    --taget vertex -p a=1 | less --chop\n"
        "gpu-pipelines models shwo digits\ngpu-pipelines runs list * # 'a'\n```\n"
        "`make sight` and `gpu-pipelines job submit --image I -- --whatever`\n"
    )
    monkeypatch.setattr(check, "text_of", lambda page: bad if page == "docs/start.md" else text_of(page))
    assert [line.rpartition(": ")[2] for line in check.command_problems()] == [
        "there is no option --taget",
        "there is no command shwo",
        "zsh takes * for names of files; quote it",
        "there is no target sight",
    ]
    (_, listed), *_ = commands.command_pages()
    assert "migrate FILE \\[GCLOUD FLAG…] \\[-- ARGUMENT…] |" in listed, "Markdown shows the brackets"


def test_the_english_of_the_pages_keeps_to_the_word_list() -> None:
    assert list(prose.problems()) == []
    for other in ("CHANGELOG.md", "gpu_pipelines/new_project/templates/README.md.j2"):
        assert list(prose.findings(other, (ROOT / other).read_text(encoding="utf-8"))) == []
    text = "The rows are read. Of images the\nclass is the folder; `Of a` is code.\n\nPlease wait for the the end.\n"
    assert list(prose.findings("page.md", text)) == [
        "page.md:1: 'Of i'; begin with the subject",
        "page.md:4: 'Please'; leave it out",
        "page.md:4: 'the the'; one of the two is too many",
    ]


def test_what_the_reference_shows_has_types_and_says_what_its_arguments_are() -> None:
    assert list(reference.problems()) == []
    (function,) = ast.parse(
        'def told(name, other: str) -> None:\n    """Says.\n\n    Args:\n        name: it.\n    """'
    ).body
    assert isinstance(function, ast.FunctionDef)
    assert list(reference.lacking(function)) == ["lacks types", "does not say what other is (Args:)"]


def test_the_reference_shows_every_name_that_users_are_told_to_import(monkeypatch: pytest.MonkeyPatch) -> None:
    text_of = pages.text_of
    told = "```python\nfrom gpu_pipelines.errors import (\n    UserError,\n    nearest,\n)\n```\n"
    removed = "::: gpu_pipelines.tasks.metric.ERROR\n"
    changed = {
        "docs/start.md": told,
        "docs/reference/python.md": text_of("docs/reference/python.md").replace(removed, ""),
    }
    monkeypatch.setattr(reference, "text_of", lambda page: changed.get(page) or text_of(page))
    assert [line.partition("; ")[0] for line in reference.problems()] == [
        "docs/reference/python.md: gpu_pipelines.errors.nearest is missing",
        "docs/reference/python.md: gpu_pipelines.tasks.metric.ERROR is missing",
    ]


def test_an_import_is_followed_to_the_module_that_defines_the_name() -> None:
    code = (
        "import gpu_pipelines\nfrom gpu_pipelines.artifacts import checkpoint as saved\n"
        "from gpu_pipelines.components import accelerate, train_model\nfrom gpu_pipelines.errors import Nothing\n"
        "gpu_pipelines.run(1)\nsaved.mark_complete(2)\n"
    )
    assert reference.imported(code) == {
        "gpu_pipelines.driver.programs.run",
        "gpu_pipelines.artifacts.checkpoint.mark_complete",
        "gpu_pipelines.component_interface.accelerate.accelerate",
        "gpu_pipelines.errors.Nothing",
    }


def messages() -> Iterator[str]:
    """The texts of the code, with … for what is put into them."""
    for folder in ("gpu_pipelines", "components"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                    yield "".join(map(str, parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def is_said(quoted: str, texts: list[str]) -> bool:
    """Whether one of the texts has what is quoted, anything in place of each …."""
    parts = quoted.split("…")
    longest = max(parts, key=len)
    pattern = re.compile(".*?".join(map(re.escape, parts)))
    return any(longest in text and pattern.search(text) for text in texts)


def test_every_error_that_is_explained_still_stands_in_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(quoted) > 40
    texts = [text.replace("\n", " ") for text in messages()]
    assert [each for each in quoted if not all(is_said(part, texts) for part in sentences(each))] == []
    assert not is_said("The … has … no such sentence", texts)


def sentences(quoted: str) -> list[str]:
    """The problem and the remedy, which the code has apart."""
    return [part for part in re.split(r"(?<=\.) (?=Copy|Decorate)", quoted) if part.strip(" ….")]


def test_a_page_keeps_its_links_on_the_site_and_gets_blank_lines_before_lists() -> None:
    places = {"docs/a.md": "a.md", "README.md": "index.md", "docs/t/n.ipynb": "t/n.md"}
    text = (
        "See\n- [start](../README.md#install)\n- [file](../setup.py), `[code](b)`\n\n```\nx\n- y\n```\n[n](t/n.ipynb)"
    )
    assert pages.for_site("docs/a.md", text, places) == (
        "See\n\n- [start](index.md#install)\n- [file](files/setup.py.md), `[code](b)`\n\n```\nx\n- y\n```\n[n](t/n.md)"
    )
    named = pages.for_site(
        "README.md", "[docs/tasks.md](docs/tasks.md#x)", {"README.md": "i.md", "docs/tasks.md": "t.md"}
    )
    assert named == "[Tasks](t.md#x)"
    assert pages.for_site("docs/t/n.ipynb", "[a](../a.md) [self](#x)", places) == "[a](../a.md) [self](#x)"


def test_a_notebook_becomes_a_page_with_what_it_printed() -> None:
    outputs = [
        {"output_type": "stream", "text": ["\x1b[32mstep 1\rstep 2\x1b[0m\n"]},
        {"output_type": "stream", "text": f"in {tutorials.DONE}/x/runs\n"},
        {"output_type": "execute_result", "data": {"text/plain": ["3"], "text/html": ["<b>3</b>"]}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["!gpu-pipelines runs list"], "outputs": outputs},
        {"cell_type": "code", "source": ["%%writefile a.py\n", "pass"], "outputs": []},
    ]
    assert tutorials.markdown_of(json.dumps({"cells": cells})) == (
        "# Title\n\n```sh\ngpu-pipelines runs list\n```\n\n``` {.text .output}\nstep 2\nin runs\n```\n\n"
        '<div class="output" markdown="0">\n<b>3</b>\n</div>\n\n```python title="a.py"\npass\n```\n'
    )


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_holds_no_outputs(name: str) -> None:
    notebook = json.loads((ROOT / "docs" / "tutorials" / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert [cell["id"] for cell in notebook["cells"] if cell.get("outputs")] == []


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[nbformat.NotebookNode]], Path]:
    """What runs a tutorial of these cells; it gives the notebook with its outputs."""
    monkeypatch.setattr(tutorials, "SOURCES", tmp_path)
    monkeypatch.setattr(tutorials, "DONE", tmp_path / "done")
    for name in ("PATH", "COLUMNS", "NO_COLOR"):  # it sets them for the kernel
        monkeypatch.setenv(name, os.environ.get(name, ""))

    def run(cells: Sequence[nbformat.NotebookNode]) -> Path:
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "small.ipynb")
        return tutorials.run("small")

    return run


def test_a_tutorial_shows_what_commands_print_and_no_warning_of_this_machine(small: Callable[..., Path]) -> None:
    cells = [nbformat.v4.new_code_cell(source) for source in ("import tqdm.auto", "!echo done")]
    shown = nbformat.read(small(cells), as_version=4).cells
    assert [[output["text"] for output in cell["outputs"]] for cell in shown] == [[], ["done\n"]]


def test_a_command_that_fails_ends_a_tutorial_unless_its_cell_expects_it(small: Callable[..., Path]) -> None:
    expected = nbformat.v4.new_code_cell("!echo refused; exit 3", metadata={"tags": ["raises-exception"]})
    page = tutorials.markdown_of(small([expected]).read_text(encoding="utf-8"))
    assert page == "```sh\necho refused; exit 3\n```\n\n``` {.text .output}\nrefused\n```\n"
    with pytest.raises(CellExecutionError, match="returned non-zero exit status 3"):
        small([nbformat.v4.new_code_cell("!echo refused; exit 3")])


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_from_its_first_cell_to_its_last(name: str) -> None:
    subprocess.run([sys.executable, "website/tutorials.py", name], cwd=ROOT, check=True)
    cells = json.loads((tutorials.DONE / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    failed = [cell for cell in code if any(output["output_type"] == "error" for output in cell["outputs"])]
    assert failed == [cell for cell in code if "raises-exception" in cell["metadata"].get("tags", [])]


@pytest.mark.slow
def test_the_site_is_built_strictly() -> None:
    subprocess.run(["make", "build/mermaid.min.js"], cwd=ROOT, check=True)
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=ROOT, check=False)
    assert done.returncode == 0
    assert "mermaid.min.js" in (ROOT / "build" / "site" / "concepts.html").read_text(encoding="utf-8")
    # What a function returns is one thing, however many lines it takes.
    text = (ROOT / "build" / "site" / "reference" / "python.html").read_text(encoding="utf-8")
    returned = re.findall(r"doc-section-title\">Returns:</span></p>\s*<ul>(.*?)</ul>", text, re.DOTALL)
    assert returned
    assert [items for items in returned if items.count("<li") != 1] == []
