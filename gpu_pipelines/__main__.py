"""The command line as `python -m gpu_pipelines`, if the folder of programs is not on the PATH."""

from gpu_pipelines.cli.main import main

main()
