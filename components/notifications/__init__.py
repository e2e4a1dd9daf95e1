"""The step `send_message`: the end of a run is told to who waits for it."""
