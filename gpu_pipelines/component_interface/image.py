"""The image that all steps run in where they run in containers."""

from gpu_pipelines import __version__

#: What stands for it in a file that was compiled without an image; nobody can pull it.
STEPS_IMAGE = f"gpu-pipelines/steps:{__version__}"
