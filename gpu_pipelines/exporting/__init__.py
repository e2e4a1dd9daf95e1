"""Models in the formats of other programs: exported, run again on the same rows, and refused if they lose too much."""
