"""Writes patients.csv: scikit-learn's table of patients with diabetes."""

from pathlib import Path

from sklearn.datasets import load_diabetes

patients = load_diabetes(scaled=False)
lines = [",".join([*patients.feature_names, "progression"])]
for row, target in zip(patients.data, patients.target, strict=True):
    lines.append(",".join(f"{value:g}" for value in (*row, target)))
Path("patients.csv").write_text("\n".join(lines) + "\n")
print(f"{len(lines) - 1} patients")
