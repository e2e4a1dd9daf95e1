"""The console: a web page with the runs on this machine and the emulator, for the user who started it."""
