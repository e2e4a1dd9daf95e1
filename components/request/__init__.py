"""The step `check_request`: what a run was asked for, checked before anything is computed."""
