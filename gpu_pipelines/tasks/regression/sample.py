"""The sample of numbers."""

from __future__ import annotations

from pathlib import Path


def write_diabetes(folder: Path) -> Path:
    """Writes ten measurements of 442 patients, and how their diabetes went on in a year, which ship with scikit-learn.

    Source: Efron et al., Annals of Statistics 32 (2004), https://doi.org/10.1214/009053604000000067.
    """
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    rows = ([*row, target] for row, target in zip(found.data, found.target, strict=True))
    lines = [",".join([*found.feature_names, "label"]), *(",".join(f"{value:.10g}" for value in row) for row in rows)]
    path = folder / "diabetes.csv"
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path
