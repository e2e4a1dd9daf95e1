"""How the checkpoints of an evaluation are scored: by recipe, by a function, over several trainings or processes."""
