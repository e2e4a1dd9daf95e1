"""The features of rows and predictions that are checked for drift, by what the rows of a task hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpu_pipelines.profiles.values import Categories, Numbers, Values, Vectors

#: Prefix of the features of a dataset that are columns of numbers to learn from.
_INPUT = "input."
#: Directions into which hashes sort the words.
_BUCKETS = 64
#: Shares of red, green and blue in a grey value, from Rec. 601.
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)
#: Knuth's multiplicative hash, The Art of Computer Programming, volume 3, section 6.4.
_KNUTH = np.uint64(2654435761)


class Watched:
    """What is watched for drift. A task overrides what differs, and calls this class for the rest.

    Rows have the form of a dataset of the task, so that all have gone through the same preparation, whenever they
    came. Values are of all rows, in their order.
    """

    def inputs(self, columns: Mapping[str, np.ndarray]) -> dict[str, Values]:
        """What is watched of a model's inputs.

        Args:
            columns: arrays (rows, *shape) by feature; lists are padded, with their lengths beside them.

        Returns:
            Values by their names for people.
        """
        found: dict[str, Values] = {}
        if "image" in columns:
            found |= image_statistics(columns["image"])
        if tokens := _tokens_of(columns):
            found |= text_statistics(*tokens)
        for name, values in columns.items():
            if name.startswith(_INPUT):
                found[name.removeprefix(_INPUT)] = Numbers.of(values)
        return found

    def predictions(self, predictions: Sequence[Mapping[str, Any]]) -> dict[str, Values]:
        """What is watched of a model's predictions.

        Args:
            predictions: JSON values, as the prediction server answers.

        Returns:
            Values by their names for people.
        """
        found: dict[str, Values] = {}
        first = predictions[0] if predictions else {}
        if isinstance(first.get("label"), str):
            found["predicted class"] = Categories([each["label"] for each in predictions])
        if isinstance(first.get("scores"), Mapping):
            found["score of the predicted class"] = Numbers.of([_largest(each["scores"]) for each in predictions])
        if isinstance(first.get("values"), Mapping):
            for name in first["values"]:
                found[f"predicted {name}"] = Numbers.of([each["values"].get(name) for each in predictions])
        if isinstance(first.get("entities"), list):
            found["entities found"] = Numbers.of([len(each["entities"]) for each in predictions])
            found["entity that is found most"] = Categories([_most(each["entities"]) for each in predictions])
        if "loss" in first:
            found["loss of a token"] = Numbers.of([each["loss"] for each in predictions])
        return found


def image_statistics(images: np.ndarray) -> dict[str, Values]:
    """Brightness, contrast, sharpness and colours of images, from their pixels as the model gets them.

    Args:
        images: uint8 (rows, channels, height, width), of one or three channels.

    Returns:
        Brightness and contrast, the mean and the standard deviation of the grey values, 0 to 1; sharpness, the
        logarithm of the variance of their Laplacian; saturation, the mean distance of the channels; and the excess of
        red over green, and of both over blue.
    """
    pixels = images.astype(np.float32) / 255
    in_colour = pixels.shape[1] == 3
    grey = np.tensordot(pixels, _GREY, axes=([1], [0])) if in_colour else pixels[:, 0]
    edges = 4 * grey[:, 1:-1, 1:-1] - grey[:, :-2, 1:-1] - grey[:, 2:, 1:-1] - grey[:, 1:-1, :-2] - grey[:, 1:-1, 2:]
    found: dict[str, Values] = {
        "brightness": Numbers.of(grey.mean(axis=(1, 2))),
        "contrast": Numbers.of(grey.std(axis=(1, 2))),
        "sharpness": Numbers.of(np.log10(edges.var(axis=(1, 2)) + 1e-6)),
    }
    if in_colour:
        red, green, blue = (pixels[:, channel].mean(axis=(1, 2)) for channel in range(3))
        found["saturation"] = Numbers.of((pixels.max(axis=1) - pixels.min(axis=1)).mean(axis=(1, 2)))
        found["red against green"] = Numbers.of(red - green)
        found["yellow against blue"] = Numbers.of((red + green) / 2 - blue)
    return found


def text_statistics(tokens: np.ndarray, lengths: np.ndarray) -> dict[str, Values]:
    """The length of texts in tokens, and their vocabulary.

    A token falls into one of 64 directions by its number. The vocabulary of a text is the square roots of the shares
    of its tokens in each direction, so that the distance of two texts is Hellinger's.

    Args:
        tokens: (rows, longest), padded.
        lengths: tokens of each row.
    """
    hashed = ((tokens.astype(np.uint64) * _KNUTH) >> np.uint64(16)) % np.uint64(_BUCKETS)
    shares = np.zeros((len(tokens), _BUCKETS), dtype=np.float32)
    for row, (buckets, length) in enumerate(zip(hashed, lengths.tolist(), strict=True)):
        shares[row] = np.bincount(buckets[:length].astype(np.int64), minlength=_BUCKETS) / max(length, 1)
    return {"length in tokens": Numbers.of(lengths), "vocabulary": Vectors(np.sqrt(shares))}


def _tokens_of(columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    for name, length in (("input_ids", "length"), ("tokens", "tokens_length")):
        if name in columns and length in columns:
            return columns[name], columns[length]
    if "input_ids" in columns and "loss_mask" in columns:
        return columns["input_ids"], columns["loss_mask"].sum(axis=1)
    return None


def _largest(scores: Mapping[str, float | None]) -> float | None:
    return max((score for score in scores.values() if score is not None), default=None)


def _most(entities: Sequence[Mapping[str, Any]]) -> str:
    kinds = [str(each.get("entity_group", each.get("type", ""))) for each in entities]
    return max(sorted(set(kinds)), key=kinds.count) if kinds else "none"
