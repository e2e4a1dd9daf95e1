"""docs/accelerators.md says what the catalog says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpu_pipelines.accelerators import document
from gpu_pipelines.accelerators.catalog import Catalog

ROOT = Path(__file__).parents[2]
PAGE = ROOT / document.PAGE


def test_the_page_is_what_the_catalog_says_byte_for_byte() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert document.render(text, Catalog()) == text


def test_every_table_is_on_the_page_once() -> None:
    assert sorted(re.findall(r"<!-- table: ([a-z0-9-]+) -->", PAGE.read_text())) == sorted(document.TABLES)


def test_the_check_notices_a_changed_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    copy = tmp_path / document.PAGE
    copy.write_text(
        PAGE.read_text().replace("| `h100` | `NVIDIA_H100_80GB` | 80 |", "| `h100` | `NVIDIA_H100_80GB` | 81 |")
    )
    monkeypatch.chdir(tmp_path)
    assert document.main(["--check"]) == 1
    assert document.main([]) == 0
    assert document.main(["--check"]) == 0
    assert copy.read_text() == PAGE.read_text()


def test_the_commands_of_the_page_exist() -> None:
    from typer.main import get_command

    from gpu_pipelines.cli.accelerators import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    for words in re.findall(r"^gpu-pipelines accelerators (.+)$", PAGE.read_text(), re.MULTILINE):
        assert words.split()[0] in commands
