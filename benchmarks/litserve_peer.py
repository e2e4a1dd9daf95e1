"""An image classifier behind LitServe, the peer of serving.py: `python benchmarks/litserve_peer.py MODEL PORT`.

In a separate file, because LitServe's worker, a process that it starts, imports the class from the program's file; and
without lazy annotations, from which LitServe learns the type of a request.
"""

import sys
from pathlib import Path
from typing import Any

import litserve

from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.settings import ServerSettings


class Classifier(litserve.LitAPI):
    """The same decoding and the same model as in this project's server.

    Args:
        directory: the exported model.
    """

    def __init__(self, directory: str) -> None:
        settings = ServerSettings()
        super().__init__(max_batch_size=settings.max_batch, batch_timeout=settings.max_wait_ms / 1000)
        self.directory = directory

    def setup(self, device: str) -> None:
        self.predictor = load_predictor(Path(self.directory), ServerSettings())

    def decode_request(self, request: dict[str, Any]) -> Any:
        return self.predictor.read(request["instances"][0], self.predictor.checked({})).row()

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def unbatch(self, output: list[Any]) -> list[Any]:
        return output

    def predict(self, rows: list[Any]) -> list[Any]:
        return self.predictor.predict(rows)

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"predictions": [output]}


if __name__ == "__main__":
    server = litserve.LitServer(Classifier(sys.argv[1]), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="warning")
