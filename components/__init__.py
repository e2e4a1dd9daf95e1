"""Pipeline steps, one folder each; a step never imports another."""
