"""The image in which all steps run if they run in containers."""

from gpu_pipelines import __version__

#: Placeholder in a file that was compiled without an image; it cannot be pulled.
STEPS_IMAGE = f"gpu-pipelines/steps:{__version__}"
