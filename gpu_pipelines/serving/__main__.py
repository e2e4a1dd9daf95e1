"""The server in a container: `python3 -m gpu_pipelines.serving [MODEL]`; all else is in the environment."""

from __future__ import annotations

import argparse
import socket
import sys

from gpu_pipelines.errors import ERROR_PREFIX, UserError
from gpu_pipelines.garbage import collect_rarely
from gpu_pipelines.serving.settings import Contract, ServerSettings


def main() -> None:
    """Serves until a signal ends it. Exit status: 0 ended, 1 the model cannot be loaded, 2 the request was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python3 -m gpu_pipelines.serving")
    parser.add_argument("model", nargs="?", default="", help="directory or gs://…; default AIP_STORAGE_URI")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 (of a container, whose port is published or not)
    parser.add_argument("--fd", type=int, help="a socket that listens, in place of host and AIP_HTTP_PORT")
    given = parser.parse_args()
    collect_rarely()
    try:
        settings, contract = ServerSettings.of_environment(), Contract.of_environment()
        model = given.model or contract.storage_uri
        if not model:
            raise UserError("No model is given.", "Name a directory or gs://…, or set AIP_STORAGE_URI.")
        from gpu_pipelines.serving.listener import listen
        from gpu_pipelines.serving.server import serve

        listener = listen(given.host, contract.port) if given.fd is None else socket.socket(fileno=given.fd)
        status = serve(model, settings, contract, listener)
    except UserError as error:
        print(f"{ERROR_PREFIX}{error}", file=sys.stderr)
        status = 2
    sys.exit(status)


if __name__ == "__main__":
    main()
