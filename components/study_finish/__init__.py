"""The step `study_finish`: what the trials of a study have left becomes checkpoints and a report."""
