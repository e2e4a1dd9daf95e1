"""The tables that the catalog is tested against, read from data/, and the day that the tests are on."""

from __future__ import annotations

from datetime import date
from pathlib import Path

DATA = Path(__file__).parent / "data"
#: The day the facts were collected: P100 and K80 are gone, T4 and P4 are ending.
TODAY = date(2026, 11, 20)
#: A day on which every GPU of the AI Platform page was there.
LEGACY_DAY = date(2023, 6, 1)


def read_table(name: str) -> list[dict[str, str]]:
    """Rows of a table whose columns are separated by blanks; `-` is an empty cell."""
    lines = [line.split() for line in (DATA / name).read_text().splitlines() if not line.startswith("#")]
    header, *rows = lines
    return [dict(zip(header, ("" if cell == "-" else cell for cell in row), strict=True)) for row in rows]


def legacy_cells() -> list[tuple[str, str, int, bool]]:
    """Every machine type × GPU × number of the AI Platform page, and whether it is allowed."""
    cells = []
    for row in read_table("n1_and_a2_table.txt"):
        for gpu in ("A100", "K80", "P4", "P100", "T4", "V100"):
            allowed = {int(count) for count in row[gpu].split(",") if count}
            for count in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 32):
                cells.append((row["machine_type"], gpu.lower(), count, count in allowed))
    return cells
