"""The step `check_for_drift`: the rows of now, compared with what a registered model was trained on."""
