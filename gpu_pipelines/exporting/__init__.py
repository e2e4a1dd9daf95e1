"""Models in the formats of other programs: written, run again on the same rows, and refused if they lose too much."""
