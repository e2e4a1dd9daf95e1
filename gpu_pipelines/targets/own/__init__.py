"""Users' own pipelines: files that are compiled for a target, with their steps placed there."""
