"""The command line by `python -m gpu_pipelines`, where the folder of programs is not on the PATH."""

from gpu_pipelines.cli.main import main

main()
