"""A corpus of any size from the texts that come with Python: its reference manual and the docstrings of its library.

A document is 4 to 40 paragraphs drawn with replacement from those texts, with every number in them replaced, so that no
two documents are equal but the words are those of real text. The same seed gives the same corpus.
"""

from __future__ import annotations

import json
import random
import re
import tempfile
from pathlib import Path

from gpu_pipelines.tasks.tasks import TASKS


def paragraphs() -> list[str]:
    """The different paragraphs of both samples."""
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for task, name in (("causal_lm", "documentation"), ("text_classification", "docstrings")):
            path = TASKS[task].write_sample(name, Path(scratch))
            for line in path.read_text(encoding="utf-8").splitlines():
                found += [part for part in json.loads(line)["text"].split("\n\n") if part.strip()]
    return sorted(set(found))


def write_corpus(path: Path, megabytes: int, seed: int = 0) -> int:
    """Writes JSON lines with `text` until the texts have this many million bytes; returns the number of documents."""
    generator = random.Random(seed)
    known, size, documents = paragraphs(), 0, 0
    with path.open("w", encoding="utf-8") as file:
        while size < megabytes * 10**6:
            drawn = "\n\n".join(generator.choices(known, k=generator.randint(4, 40)))
            text = re.sub(r"[0-9]+", lambda _: str(generator.randrange(1000)), drawn) + f"\n\n{documents}"
            file.write(json.dumps({"text": text}) + "\n")
            size += len(text.encode())
            documents += 1
    return documents


def write_images(folder: Path, number: int = 0, megabytes: int = 0, seed: int = 0) -> None:
    """Writes JPEG images of 500 × 375 pixels, of noise at the scale of 25 pixels, in ten folders by class.

    Args:
        folder: the folder of the class folders.
        number: the number of images.
        megabytes: or their size, million bytes. After the first thousand the pictures repeat, with a number after their
            last byte, which decoders ignore, so that no two files are equal.
    """
    import io

    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(seed)
    pictures: list[bytes] = []
    count = size = 0
    while count < number or size < megabytes * 10**6:
        if count < (number or 1000):
            file = io.BytesIO()
            rough = generator.integers(0, 256, (15, 20, 3)).astype(np.uint8)
            Image.fromarray(rough).resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
            pictures.append(file.getvalue())
        place = folder / f"class-{count % 10}" / f"{count:06}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        content = pictures[count % len(pictures)] + (b"" if number else b"%d" % count)
        place.write_bytes(content)
        size += len(content)
        count += 1
