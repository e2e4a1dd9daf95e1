"""Which folders are installed; everything else is in setup.cfg."""

from setuptools import find_packages, setup

# components/ and pipelines/ stand at the top of the repository, where their users look for them, but are installed
# below gpu_pipelines, so that no environment gets a top-level package called "components".
OF_USERS = ("components", "pipelines")

setup(
    package_dir={"gpu_pipelines": "gpu_pipelines", **{f"gpu_pipelines.{folder}": folder for folder in OF_USERS}},
    packages=[
        *find_packages(include=["gpu_pipelines*"]),
        *(f"gpu_pipelines.{name}" for name in find_packages(include=[f"{folder}*" for folder in OF_USERS])),
    ],
)
