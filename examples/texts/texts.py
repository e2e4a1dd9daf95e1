"""Writes texts.csv: first lines of docstrings of Python's library, each with its topic."""

import ast
import csv
import sysconfig
from pathlib import Path

TOPICS = {
    "network": ("email", "http"),
    "documents": ("xml",),
    "tests": ("unittest", "doctest.py"),
    "processes": ("asyncio",),
}
LIBRARY = Path(sysconfig.get_path("stdlib"))


def files(name):
    place = LIBRARY / name
    return [place] if place.is_file() else sorted(place.rglob("*.py"))


rows = [
    {"summary": text.partition("\n")[0], "topic": topic}
    for topic, names in TOPICS.items()
    for name in names
    for file in files(name)
    for node in ast.walk(ast.parse(file.read_bytes()))
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and len(text := ast.get_docstring(node) or "") > 20
]
with Path("texts.csv").open("w", newline="", encoding="utf-8") as file:
    writer = csv.DictWriter(file, ["summary", "topic"])
    writer.writeheader()
    writer.writerows(rows)
print(f"{len(rows)} texts")
