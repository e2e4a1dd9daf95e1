"""A GPU that does not exist, as the rows that a person would add for it; nothing in the code knows any of its names."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpu_pipelines.accelerators.catalog.loader import PACKAGED

QUOTA = "aiplatform.googleapis.com/custom_model_{}_nvidia_x900_gpus"
#: One row for the GPU and one for each of its machine types.
GPU = (
    "x900,NVIDIA_X900,X900 SXM 400GB,nvidia-x900-400gb,nvidia-x900,X900,x900-400gb,,,yes,Euler,14.0,400,20000,9000,"
    '9000,160,yes,1800,0.4,,14.1,,,"PyTorch 3.1 or later, built for CUDA 14.1 or later",'
    f"{QUOTA.format('training')},{QUOTA.format('training_preemptible')},{QUOTA.format('serving')},"
    "1-spot 8-2-nodes,8-2-nodes,mfu,gce-gpus"
)
MACHINES = (
    "zz9-plural-1g,zz9-plural,x900:1,no,32,512,0,100,,1,IDPF,,no,yes,yes,yes,yes,hyperdisk-balanced,amd64,,,gce-gpus",
    "zz9-alpha-8g,zz9-alpha,x900:8,no,256,4096,16000,6400,,10,GVNIC,GPUDirect-RDMA,yes,yes,yes,yes,yes,"
    "hyperdisk-balanced,arm64,,,gce-gpus",
)
PRICES = (
    "zz9-plural-1g,machine,us-central1,1.5,0.5,,billing-api",
    "zz9-alpha-8g,machine,us-central1,12,4,,billing-api",
)
REGIONS = ("x900,us-central1,us-central1-a,zz9-alpha zz9-plural,,gce-gpus",)
ROWS = {"gpus.csv": (GPU,), "machine_types.csv": MACHINES, "prices.csv": PRICES, "availability.csv": REGIONS}


def add_to(folder: Path) -> None:
    """Writes the catalog's files with those rows below their own into a folder."""
    for name, rows in ROWS.items():
        shutil.copyfile(PACKAGED / name, folder / name)
        with (folder / name).open("a", encoding="utf-8") as file:
            file.writelines(f"{row}\n" for row in rows)
