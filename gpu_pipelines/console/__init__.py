"""The console: a web page of the runs on this machine and of the emulator, for the one who has started it."""
