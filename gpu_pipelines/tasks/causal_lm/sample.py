"""The sample of texts for a language model."""

from __future__ import annotations

from pathlib import Path

from gpu_pipelines.tasks.sample_rows import write_rows

# Characters after which a topic of the manual is continued in another document: a few dozen topics make no good split.
LONGEST_SECTION = 2000


def write_documentation(folder: Path) -> Path:
    """Writes Python's own reference manual, which ships with Python, into `documentation.jsonl`.

    Args:
        folder: gets the file.

    Returns:
        The path to give as the source.
    """
    return write_rows(folder / "documentation.jsonl", _documentation())


def _documentation() -> list[dict[str, str]]:
    from pydoc_data.topics import topics

    rows = []
    for _, text in sorted(topics.items()):
        section = ""
        for paragraph in text.strip().split("\n\n"):
            if section and len(section) + len(paragraph) > LONGEST_SECTION:
                rows.append({"text": section})
                section = ""
            section += f"\n\n{paragraph}" if section else paragraph
        rows.append({"text": section})
    return rows
