"""Where the steps run: specifications of jobs and their machines, as a compiled file has them."""
