"""The speed of the prediction server with 1, 8 and 64 clients, beside a bare call of the model and LitServe.

Run with `python benchmarks/serving.py [--seconds S] [--model NAME] [--wrong N]`. The model is an image classifier with
random weights, on 32 × 32 colour images; each request has one image in base64. The clients are one process (asyncio,
connections kept open); each sends its next request after the answer to its last one. On a machine with few cores,
clients and server compete for them; both are counted as they are.

Then damaged requests are sent: their statuses, and the growth of the server's memory. Last, the time of a small request
alone and beside large ones: one image beside two requests of twelve PNGs of 25 million pixels, and the loss of one word
beside four requests of 128 prompts, each of which is continued by 100 tokens.

LitServe (https://lightning.ai/docs/litserve) gets the same model, decoder and batch sizes. It is started before this
project's server and stopped; the same clients send requests to both in the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
import requests
from PIL import Image

from gpu_pipelines.serving.predictors import load_predictor
from gpu_pipelines.serving.settings import ServerSettings
from gpu_pipelines.serving.started import started_server

CLIENTS = (1, 8, 64)
BATCHES = (1, 8, 32)
SIZE, CLASSES = 32, 10
IMAGES = 64
#: Warm-up, as a share of the measured time.
WARM_UP = 0.25
#: Damaged requests after which caches and allocators have reached their size.
SETTLED = 1000


def export(name: str, directory: Path) -> None:
    """Writes an image classifier with random weights."""
    import torch

    from gpu_pipelines.artifacts.image_features import ImageGeometry
    from gpu_pipelines.tasks.image_classification.recipe import ImageClassification

    torch.manual_seed(0)
    geometry = ImageGeometry(SIZE, "RGB")
    labels = [f"class {number}" for number in range(CLASSES)]
    recipe = ImageClassification(labels, geometry.preprocessing(), geometry.shape)
    recipe.export(recipe.build_model(name), directory)


def encoded_images() -> list[str]:
    """Random images, as PNGs in base64."""
    generator, found = np.random.default_rng(0), []
    for pixels in generator.integers(0, 256, (IMAGES, SIZE, SIZE, 3), dtype=np.uint8):
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        found.append(base64.b64encode(file.getvalue()).decode())
    return found


def bare_calls(directory: Path, seconds: float) -> dict[int, float]:
    """Seconds of the model for a batch, by batch size; images are already decoded."""
    predictor = load_predictor(directory, ServerSettings())
    rows = [predictor.read({"b64": image}, predictor.checked({})).row() for image in encoded_images()]
    found = {}
    for size in BATCHES:
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            predictor.predict(rows[:size])
            times.append(time.perf_counter() - start)
        found[size] = statistics.median(times)
    return found


async def one_client(address: str, bodies: list[bytes], until: float) -> list[tuple[float, float]]:
    """Sends requests until a time; returns the start and the latency of each, seconds."""
    place = urlsplit(address)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    found, turn = [], random.randrange(len(bodies))
    while (start := time.perf_counter()) < until:
        body = bodies[turn % len(bodies)]
        head = f"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the server answered {answer.splitlines()[0].decode()}")
        await reader.readexactly(int(answer.lower().partition(b"content-length:")[2].split()[0]))
        found.append((start, time.perf_counter() - start))
        turn += 1
    writer.close()
    return found


async def all_clients(address: str, clients: int, seconds: float) -> dict[str, float]:
    """Latency and throughput of some clients."""
    bodies = [json.dumps({"instances": [{"b64": image}]}).encode() for image in encoded_images()]
    begin = time.perf_counter() + WARM_UP * seconds
    until = begin + seconds
    each = await asyncio.gather(*(one_client(address, bodies, until) for _ in range(clients)))
    counted = [(start, took) for requests in each for start, took in requests if start >= begin]
    took = [duration for _, duration in counted]
    return {
        "p50_ms": 1000 * float(np.percentile(took, 50)),
        "p99_ms": 1000 * float(np.percentile(took, 99)),
        "requests_per_s": sum(start + duration <= until for start, duration in counted) / seconds,
    }


def measured(address: str, clients: int, seconds: float) -> dict[str, float]:
    """The same in a separate process, so that this one does not slow the clients down."""
    command = [sys.executable, __file__, "--address", address, "--clients", str(clients), "--seconds", str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def litserve(directory: Path) -> Iterator[str]:
    """The same model behind LitServe; yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("litserve_peer.py")), str(directory), str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        while True:
            if server.poll() is not None:
                raise SystemExit("LitServe has ended; pip install 'gpu-pipelines[bench]'")
            with suppress(requests.RequestException):
                if requests.get(f"{address}/health", timeout=5).status_code == 200:
                    break
            time.sleep(0.1)
        yield address
    finally:
        for process in (*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)):
            process.kill()
        server.wait()


def waits(address: str, small: bytes, large: Sequence[bytes], seconds: float) -> dict[str, float]:
    """Milliseconds of a small request alone, and while large ones are processed (also the longest of them)."""

    def took() -> float:
        start = time.perf_counter()
        if requests.post(f"{address}/predict", data=small, timeout=120).status_code != 200:
            raise SystemExit("the small request was refused")
        return 1000 * (time.perf_counter() - start)

    alone = [took() for _ in range(20)]
    beside: list[float] = []
    with ThreadPoolExecutor(len(large)) as pool:
        sent = [pool.submit(requests.post, f"{address}/predict", data=body, timeout=300) for body in large]
        time.sleep(0.1)
        until = time.perf_counter() + seconds
        while time.perf_counter() < until and not all(each.done() for each in sent):
            beside.append(took())
    return {"alone_p50_ms": statistics.median(alone), "p50_ms": statistics.median(beside), "max_ms": max(beside)}


def all_waits(directory: Path, seconds: float) -> dict[str, dict[str, float]]:
    """The times of small requests beside large ones, of images and of texts."""
    file = io.BytesIO()
    Image.new("RGB", (5000, 5000)).save(file, "PNG")
    picture = {"b64": base64.b64encode(file.getvalue()).decode()}
    small = json.dumps({"instances": [{"b64": encoded_images()[0]}]}).encode()
    with started_server(str(directory)) as server:
        body = json.dumps({"instances": [picture] * 12}).encode()
        images = waits(server.address, small, [body] * 2, seconds)
    with tempfile.TemporaryDirectory() as folder:
        prompts = export_language_model(Path(folder) / "model")
        with started_server(f"{folder}/model") as server:
            instances = [{"prompt": prompt} for prompt in prompts]
            content = {"instances": instances, "parameters": {"max_new_tokens": 100}}
            one_word = json.dumps({"instances": [{"prompt": "bee"}]}).encode()
            texts = waits(server.address, one_word, [json.dumps(content).encode()] * 4, seconds)
    return {"an image beside 24 of 25 million pixels": images, "a word beside 4 × 128 rows × 100 tokens": texts}


def export_language_model(directory: Path) -> list[str]:
    """Writes a language model with random weights; returns 128 prompts for it."""
    import torch

    from gpu_pipelines.tasks.causal_lm.recipe import CausalLanguageModel
    from gpu_pipelines.tasks.text_encoding import TextEncoder
    from gpu_pipelines.tasks.text_tokenizer import TextTokenizer

    words = ("the", "bee", "sees", "a", "cat", "and", "an", "ant")
    generator = random.Random(0)
    prompts = [" ".join(generator.choices(words, k=generator.randint(1, 8))) for _ in range(128)]
    made = directory.with_name("tokenizer")
    TextEncoder.train(prompts, 0, ends=False).save(made, 256)
    torch.manual_seed(0)
    recipe = CausalLanguageModel(TextTokenizer.read(made), 256)
    directory.mkdir()
    recipe.export(recipe.build_model("gpt2-micro"), directory)
    return prompts


def send_wrong(address: str, count: int) -> dict[str, Any]:
    """Sends damaged requests: their statuses, and the growth of the server's memory in MiB."""
    body = json.dumps({"instances": [{"b64": encoded_images()[0]}]}).encode()
    generator, statuses = random.Random(0), Counter[int]()
    (server,) = psutil.Process().children()
    before = 0
    with requests.Session() as session:
        for number in range(SETTLED + count):
            if number == SETTLED:
                before, statuses = server.memory_info().rss, Counter()
            damaged = body[: generator.randrange(len(body))]
            statuses[session.post(f"{address}/predict", data=damaged, timeout=60).status_code] += 1
    growth = (server.memory_info().rss - before) / 2**20
    return {"statuses": dict(statuses), "memory_growth_mib": round(growth, 2)}


def main() -> None:
    """Measures the bare model, then the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="convnext-micro")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each number of clients, and each batch")
    parser.add_argument("--wrong", type=int, default=10_000, help="damaged requests")
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.address:
        print(json.dumps(asyncio.run(all_clients(given.address, given.clients, given.seconds))))
        return
    with tempfile.TemporaryDirectory() as folder:
        export(given.model, Path(folder))
        bare = bare_calls(Path(folder), given.seconds / 4)
        with litserve(Path(folder)) as address:
            peer = {clients: measured(address, clients, given.seconds) for clients in CLIENTS}
        with started_server(folder) as server:
            served = {clients: measured(server.address, clients, given.seconds) for clients in CLIENTS}
            wrong = send_wrong(server.address, given.wrong)
        waited = all_waits(Path(folder), given.seconds)
    show(bare, {"server": served, "litserve": peer}, wrong, waited)


def show(
    bare: dict[int, float],
    both: dict[str, dict[int, dict[str, float]]],
    wrong: dict[str, Any],
    waited: dict[str, dict[str, float]],
) -> None:
    """Prints the table and the JSON object."""
    for size, seconds in bare.items():
        print(f"bare call, batch of {size:<3} {1000 * seconds:8.2f} ms {'':24} {size / seconds:8.0f} images/s")
    results: dict[str, Any] = {f"bare, batch {size}": round(seconds, 6) for size, seconds in bare.items()}
    for name, served in both.items():
        for clients, found in served.items():
            print(
                f"{name + ',':<9} {clients:<3} clients   "
                f"p50 {found['p50_ms']:8.2f} ms   p99 {found['p99_ms']:8.2f} ms   "
                f"{found['requests_per_s']:8.0f} images/s"
            )
            results[f"{name}, {clients} clients"] = {what: round(value, 3) for what, value in found.items()}
    print(f"damaged requests: {wrong['statuses']}, memory grew by {wrong['memory_growth_mib']} MiB")
    for what, found in waited.items():
        print(f"{what}: {', '.join(f'{name} {value:.1f}' for name, value in found.items())}")
        results[what] = {name: round(value, 3) for name, value in found.items()}
    results["damaged"] = wrong
    served, peer, largest = both["server"], both["litserve"], max(bare)
    most = max(served)
    ratios = {
        f"images/s, {most} clients / bare batch {largest}": served[most]["requests_per_s"] * bare[largest] / largest,
        "p50, 1 client / bare batch 1": served[1]["p50_ms"] / 1000 / bare[1],
        **{
            f"images/s, {clients} clients / LitServe": found["requests_per_s"] / peer[clients]["requests_per_s"]
            for clients, found in served.items()
        },
    }
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    rounded = {name: round(value, 3) for name, value in ratios.items()}
    print(json.dumps({"benchmark": "serving", "machine": machine, "results": results, "ratios": rounded}))


if __name__ == "__main__":
    main()
