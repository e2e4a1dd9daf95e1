"""What the steps of a run left, shown to people and given to the runs that continue it."""
