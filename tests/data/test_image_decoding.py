"""Encoded images become arrays as Hugging Face's image processor makes them; anything else is rejected."""

from __future__ import annotations

import io
import json
import random
import struct
import sys
import warnings
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from gpu_pipelines.artifacts.image_features import (
    LARGEST_CHOSEN_SIZE,
    ImageGeometry,
    UnreadableImageError,
    choose_geometry,
    decode,
    open_image,
)

ORIENTATION = 0x0112


def noise(height: int = 24, width: int = 32, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype(np.uint8).squeeze()


def smooth(height: int = 24, width: int = 32) -> np.ndarray:
    """A picture without fine detail, which lossy formats keep almost unchanged."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack(
        [rows * 255 // height, columns * 255 // width, (rows + columns) * 127 // (height + width)], -1
    ).astype(np.uint8)


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, kind, **options)
    return file.getvalue()


def processor(geometry: ImageGeometry, folder: Path) -> Any:
    from transformers import AutoImageProcessor

    (folder / "preprocessor_config.json").write_text(json.dumps(geometry.preprocessing()))
    return AutoImageProcessor.from_pretrained(folder)


# The same as Hugging Face's processor


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("shape", [(24, 32), (16, 16), (100, 37), (9, 200), (1, 1)], ids=str)
@pytest.mark.parametrize("size", [16, 48])
def test_pixels_are_those_of_huggingfaces_processor(
    tmp_path: Path, mode: str, shape: tuple[int, int], size: int
) -> None:
    geometry = ImageGeometry(size, mode)
    image = Image.fromarray(noise(*shape).reshape(*shape, 3)).convert(mode)
    ours = decode(encoded(image), geometry)
    theirs = processor(geometry, tmp_path)(image, return_tensors="np")["pixel_values"][0]
    assert ours.dtype == np.uint8
    assert ours.shape == geometry.shape == theirs.shape
    np.testing.assert_allclose(ours / 127.5 - 1, theirs, atol=1e-6)


def on_white(content: bytes) -> Image.Image:
    """What newer versions of transformers make of transparency; older ones drop it."""
    drawn = Image.open(io.BytesIO(content)).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")


@pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK", "1", "L", "LA", "PA"])
def test_other_modes_become_colour_as_huggingfaces_processor_makes_them(tmp_path: Path, mode: str) -> None:
    geometry = ImageGeometry(16, "RGB")
    picture = Image.fromarray(noise()).convert("P" if mode == "PA" else mode).convert(mode)
    if mode in ("RGBA", "LA"):
        picture.putalpha(Image.fromarray(noise(channels=1, seed=1)))
    kind = {"CMYK": "TIFF", "PA": "PNG"}.get(mode, "PNG")
    content = encoded(picture.convert("P") if mode == "PA" else picture, kind)
    image = on_white(content) if mode in ("RGBA", "LA") else Image.open(io.BytesIO(content))
    theirs = processor(geometry, tmp_path)(image, return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(decode(content, geometry) / 127.5 - 1, theirs, atol=1e-6)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("shape", [(896, 1200), (900, 1200), (903, 1201), (455, 601)], ids=str)
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_photo_that_is_decoded_at_a_fraction_stays_close_to_huggingfaces(
    tmp_path: Path, mode: str, shape: tuple[int, int], orientation: int
) -> None:
    geometry = ImageGeometry(32, mode)
    blocks = Image.fromarray(noise(30, 40)).resize((shape[1], shape[0]), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = encoded(blocks, "JPEG", quality=92, exif=exif)
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(content))).convert(mode)
    theirs = processor(geometry, tmp_path)(image, return_tensors="np")["pixel_values"][0]
    levels = np.abs(decode(content, geometry) - (theirs + 1) * 127.5)
    assert levels.mean() < 1
    assert levels.max() < 10


def test_a_small_photo_is_decoded_in_full(tmp_path: Path) -> None:
    geometry = ImageGeometry(32, "RGB")
    content = encoded(smooth(60, 63), "JPEG")
    theirs = processor(geometry, tmp_path)(Image.open(io.BytesIO(content)), return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(decode(content, geometry) / 127.5 - 1, theirs, atol=1e-6)


# Kinds of images


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "TGA", "JPEG2000", "AVIF"])
def test_every_common_format_is_read(kind: str) -> None:
    geometry = ImageGeometry(24, "RGB")
    picture = smooth(24, 24)
    got = decode(encoded(picture, kind), geometry).transpose(1, 2, 0)
    assert np.abs(got.astype(int) - picture).mean() < 8


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize("endian", ["<u2", ">u2"])
def test_sixteen_bit_grey_is_scaled_and_not_clipped(kind: str, endian: str) -> None:
    values = (np.arange(256, dtype=np.uint32) * 257).reshape(16, 16)
    image = Image.frombytes("I;16" if endian == "<u2" else "I;16B", (16, 16), values.astype(endian).tobytes())
    got = decode(encoded(image, kind), ImageGeometry(16, "L"))
    assert np.abs(got[0].astype(int) - values // 257).max() <= 1


def test_the_scale_of_sixteen_bit_grey_does_not_depend_on_the_brightness_of_the_image() -> None:
    def shown(value: int) -> int:
        content = encoded(np.full((16, 16), value, dtype=np.uint16))
        return int(decode(content, ImageGeometry(16, "L")).max())

    levels = [shown(value) for value in (100, 255, 256, 1000, 40_000, 65_535)]
    assert levels == sorted(levels)


def test_a_sixteen_bit_image_is_grey_whatever_its_byte_order() -> None:
    values = np.full((16, 16), 1000, dtype=np.uint16)
    little = encoded(values, "TIFF")
    big = encoded(Image.frombytes("I;16B", (16, 16), values.astype(">u2").tobytes()), "TIFF")
    assert [choose_geometry([content]) for content in (little, big)] == [ImageGeometry(16, "L")] * 2


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP"])
def test_transparent_places_are_put_on_white(tmp_path: Path, kind: str) -> None:
    # A logo: black strokes on nothing, and "nothing" is stored as black as well.
    pixels = np.zeros((16, 16, 4), dtype=np.uint8)
    pixels[4:12, 6:10, 3] = 255
    content = encoded(pixels, kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    theirs = processor(ImageGeometry(16, "RGB"), tmp_path)(on_white(content), return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(decode(content, ImageGeometry(16, "RGB")) / 127.5 - 1, theirs, atol=1e-6)


def test_a_palette_with_degrees_of_transparency_is_read_without_a_warning() -> None:
    content = encoded(Image.fromarray(smooth()).quantize(32), "PNG", transparency=bytes(range(32)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode(content, ImageGeometry(16, "RGB")).shape == (3, 16, 16)


def test_one_bit_images_use_the_whole_range() -> None:
    image = Image.fromarray((noise(16, 16, 1) > 127).astype(np.uint8) * 255).convert("1")
    assert set(np.unique(decode(encoded(image), ImageGeometry(16, "L")))) == {0, 255}


def test_a_cmyk_photo_keeps_its_colours() -> None:
    red = Image.new("RGB", (32, 32), (220, 30, 30))
    got = decode(encoded(red.convert("CMYK"), "JPEG", quality=95), ImageGeometry(16, "RGB"))
    assert np.abs(got.reshape(3, -1).mean(axis=1) - [220, 30, 30]).max() < 6


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_counts(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), color) for color in ((250, 0, 0), (0, 250, 0))]
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert np.abs(decode(content, ImageGeometry(16, "RGB"))[:, 8, 8].astype(int) - [250, 0, 0]).max() < 12


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_photos_are_turned_upright_by_their_exif_tag(orientation: int, kind: str, mode: str) -> None:
    upright = smooth(64, 64)
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}
    stored = Image.fromarray(upright)
    if orientation in undo:
        stored = stored.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = encoded(stored, kind, exif=exif, **({"quality": 95} if kind in ("JPEG", "WEBP") else {}))
    assert Image.open(io.BytesIO(content)).getexif()[ORIENTATION] == orientation
    wanted = decode(encoded(upright), ImageGeometry(16, mode))
    assert np.abs(decode(content, ImageGeometry(16, mode)).astype(int) - wanted).max() < 12


@pytest.mark.parametrize("shape", [(1, 500), (500, 1)], ids=str)
def test_very_narrow_images_are_read(shape: tuple[int, int]) -> None:
    assert decode(encoded(noise(*shape).reshape(*shape, 3)), ImageGeometry(16, "RGB")).shape == (3, 16, 16)


def test_float_images_with_values_that_are_no_numbers_do_not_warn() -> None:
    values = np.linspace(0, 255, 256, dtype=np.float32).reshape(16, 16)
    values[0, 0] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            got = decode(encoded(values, "TIFF"), ImageGeometry(16, "L"))
        except UnreadableImageError:
            return
    assert np.abs(got[0].astype(int) - np.nan_to_num(values).astype(int)).max() <= 1


# Bytes that are no images


def png_header(width: int, height: int) -> bytes:
    """A PNG that promises many pixels and holds none."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"hello", "not an image"),
        (b"\x89PNG\r\n\x1a\n", None),
        (b"\xff\xd8\xff", None),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        (b"%PDF-1.4\n", "not an image"),
        (bytes(10_000), "not an image"),
    ],
    ids=["empty", "text", "PNG signature", "JPEG signature", "SVG", "PDF", "zeros"],
)
def test_bytes_that_are_no_image_are_unreadable(content: bytes, says: str | None) -> None:
    with pytest.raises(UnreadableImageError, match=says):
        decode(content, ImageGeometry(16, "RGB"))


@pytest.mark.parametrize("side", [9_600, 14_000, 60_000, 2**31 - 1])
def test_decompression_bombs_are_unreadable_before_they_are_decoded(side: int) -> None:
    with pytest.raises(UnreadableImageError, match="decompression bomb"):
        decode(png_header(side, side), ImageGeometry(16, "RGB"))


def test_decompression_bombs_are_found_by_many_threads_at_once() -> None:
    # As the preparation decodes; the filters of Python's warnings belong to the process, not to the thread.
    bomb = png_header(9_600, 9_600)

    def outcome(_: int) -> str:
        try:
            open_image(bomb)
        except UnreadableImageError as error:
            return "a bomb" if "decompression bomb" in str(error) else str(error)
        return "opened"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        filters = list(warnings.filters)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(16) as pool:
                outcomes = Counter(pool.map(outcome, range(10_000)))
        finally:
            sys.setswitchinterval(interval)
        assert set(outcomes) == {"a bomb"}, outcomes
        assert warnings.filters == filters


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9])
def test_truncated_images_are_unreadable(kind: str, share: float) -> None:
    content = encoded(noise(64, 64), kind)
    with pytest.raises(UnreadableImageError):
        decode(content[: int(len(content) * share)], ImageGeometry(16, "RGB"))


def test_an_image_of_a_kind_that_pillow_knows_but_cannot_decode_is_unreadable() -> None:
    surface = bytearray(encoded(noise(), "DDS"))
    surface[80:84] = bytes(4)  # the flags of the pixel format: none
    with pytest.raises(UnreadableImageError):
        decode(bytes(surface), ImageGeometry(16, "RGB"))


def test_a_damaged_exif_block_does_not_stop_the_preparation() -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    exif[0x011A] = 72.0
    exif[0x010E] = "a description"
    good = encoded(smooth(), "JPEG", exif=exif)
    start = good.index(b"Exif\0\0") + 6
    for place in range(start + 8, start + 48):
        for value in (0, 1, 2, 7, 9, 255):
            damaged = good[:place] + bytes([value]) + good[place + 1 :]
            try:
                decode(damaged, ImageGeometry(16, "RGB"))
            except UnreadableImageError:
                continue


@pytest.mark.parametrize(
    "kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "PPM", "TGA", "ICO", "AVIF", "JPEG2000", "DDS", "MPO", "PCX"]
)
def test_damaged_images_are_decoded_or_unreadable_and_nothing_else(kind: str) -> None:
    generator = random.Random(kind)
    good = encoded(noise(), kind)
    for _ in range(200):
        damaged = bytearray(good)
        for _ in range(generator.choice((1, 2, 6))):
            damaged[generator.randrange(generator.choice((min(128, len(good)), len(good))))] = generator.randrange(256)
        content = bytes(damaged[: generator.randrange(len(good))] if generator.random() < 0.2 else damaged)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                decode(content, ImageGeometry(16, "RGB"))
            except UnreadableImageError:
                continue


# The choice of the geometry


@pytest.mark.parametrize(
    ("sides", "chosen"),
    [([8], 8), ([1], 8), ([13], 16), ([11], 8), ([16, 30, 500], 32), ([64], 64), ([900], LARGEST_CHOSEN_SIZE)],
    ids=str,
)
def test_the_size_chosen_is_the_median_of_the_shorter_sides_in_steps_of_eight(sides: list[int], chosen: int) -> None:
    examples = [encoded(Image.new("L", (side, 2 * side))) for side in sides]
    geometry = choose_geometry(examples)
    assert geometry == ImageGeometry(chosen, "L")


def test_grey_is_chosen_only_if_every_example_is_grey() -> None:
    grey = [encoded(Image.new(mode, (8, 8))) for mode in ("L", "1", "LA", "I;16")]
    colour = encoded(Image.new("RGB", (8, 8)))
    assert choose_geometry(grey) == ImageGeometry(8, "L")
    assert choose_geometry([*grey, colour]) == ImageGeometry(8, "RGB")


@pytest.mark.parametrize(("size", "mode"), [(40, "auto"), (0, "RGB"), (0, "L"), (40, "RGB")])
def test_what_was_asked_for_is_not_chosen_otherwise(size: int, mode: str) -> None:
    geometry = choose_geometry([encoded(Image.new("L", (16, 16)))], size, mode)
    assert geometry == ImageGeometry(size or 16, "L" if mode == "auto" else mode)


def test_unreadable_examples_are_passed_over() -> None:
    good = encoded(Image.new("L", (16, 16)))
    assert choose_geometry([b"", b"broken", good]) == ImageGeometry(16, "L")
    assert choose_geometry([b"", b"broken"]) is None
    assert choose_geometry([]) is None


def test_the_preprocessing_of_a_grey_geometry_has_one_channel() -> None:
    grey, colour = ImageGeometry(8, "L").preprocessing(), ImageGeometry(8, "RGB").preprocessing()
    assert (len(grey["image_mean"]), len(colour["image_mean"])) == (1, 3)
    assert (grey["do_convert_rgb"], colour["do_convert_rgb"]) == (False, True)
