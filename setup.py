"""Which folders are installed, and what the package's page says; everything else is in setup.cfg."""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

# components/ and pipelines/ stand at the top of the repository, where their users look for them, but are installed
# below gpu_pipelines, so that no environment gets a top-level package called "components".
OF_USERS = ("components", "pipelines")
ROOT = Path(__file__).parent


def described(project_url: str) -> dict[str, object]:
    """The package's page with links to the repository.

    An index shows the README without the files beside it, so its relative links become addresses there. Where the
    repository lies is known to the one who releases alone, so without an address the page is the README as it stands.

    Args:
        project_url: address of the repository on GitHub; empty if it has none.
    """
    if not project_url:
        return {}
    version = re.search(r'__version__ = "(.+)"', (ROOT / "gpu_pipelines/__init__.py").read_text(encoding="utf-8"))
    tag = f"v{version[1]}" if version else "HEAD"
    page = re.sub(
        r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)]+)\)",
        lambda link: f"{link[1]}[{link[2]}]({project_url}/{'raw' if link[1] else 'blob'}/{tag}/{link[3]})",
        (ROOT / "README.md").read_text(encoding="utf-8"),
    )
    return {
        "long_description": page,
        "url": project_url,
        "project_urls": {
            "Documentation": f"{project_url}/tree/{tag}/docs",
            "Changelog": f"{project_url}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{project_url}/issues",
            "Source": f"{project_url}/tree/{tag}",
        },
    }


setup(
    package_dir={"gpu_pipelines": "gpu_pipelines", **{f"gpu_pipelines.{folder}": folder for folder in OF_USERS}},
    packages=[
        *find_packages(include=["gpu_pipelines*"]),
        *(f"gpu_pipelines.{name}" for name in find_packages(include=[f"{folder}*" for folder in OF_USERS])),
    ],
    **described(os.environ.get("PROJECT_URL", "").rstrip("/")),
)
