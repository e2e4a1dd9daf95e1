"""Texts that are nearly the same: found, named with what they are like, and never in two splits."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from preparing import WORDS, prepare_alone
from tokenizers import Tokenizer

from gpu_pipelines.artifacts.dataset import NEAR_DUPLICATES, SPLITS, Dataset, Manifest
from gpu_pipelines.artifacts.documents import sha256_of_tree
from gpu_pipelines.data.prepare import prepare_data
from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits import judgement_plan, near_rounds
from gpu_pipelines.data.splits.near_duplicates import (
    SIGNATURE_LENGTH,
    Signatures,
    Signer,
    bands_for,
    hashes,
    near_duplicates,
    shingles,
)

VOCABULARY = [f"{first}{second}" for first, second in combinations(WORDS, 2)]
THRESHOLD = 0.7


def document(generator: random.Random, words: int = 120) -> list[str]:
    return generator.choices(VOCABULARY, k=words)


def changed(words: list[str], generator: random.Random, changes: int) -> list[str]:
    """The same text with some words replaced."""
    other = list(words)
    for place in generator.sample(range(len(words)), changes):
        other[place] = "changed"
    return other


def jaccard(first: str, second: str) -> float:
    one, two = shingles(first), shingles(second)
    return len(one & two) / len(one | two)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """200 texts; of 40 of them there is one with two words of 120 changed, of 20 one with thirty."""
    generator = random.Random(3)
    originals = [document(generator) for _ in range(200)]
    near = [changed(words, generator, 2) for words in originals[:40]]
    far = [changed(words, generator, 30) for words in originals[40:60]]
    return [" ".join(words) for words in originals + near + far]


def prepared_settings(source: Path) -> PrepareSettings:
    return PrepareSettings(
        source=str(source),
        task="causal_lm",
        near_duplicates=THRESHOLD,
        sequence_length=1024,
        vocabulary_size=600,
        val_fraction=0.3,
        test_fraction=0.3,
        packing=False,
    )


@pytest.fixture(scope="module")
def prepared(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("near")
    rows = [{"text": text} for text in [*texts, texts[0], ""]]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "out", prepare_data(prepared_settings(folder / "t.jsonl"), folder / "out")


def test_near_duplicates_are_left_out_and_named(prepared: tuple[Path, Manifest], texts: list[str]) -> None:
    directory, manifest = prepared
    assert manifest.near_duplicates == 40
    assert manifest.duplicates == 41, "the same text once more is a duplicate as well"
    assert manifest.rejected == {"no text": 1}
    assert manifest.records_kept + manifest.duplicates + 1 == manifest.rows_read == 262
    told = [json.loads(line) for line in (directory / NEAR_DUPLICATES).read_text().splitlines()]
    found = {(entry["source"], entry["duplicate_of"]) for entry in told}
    assert found == {(f"t.jsonl:{201 + number}", f"t.jsonl:{1 + number}") for number in range(40)}
    for entry in told:
        pair = [texts[int(entry[name].partition(":")[2]) - 1] for name in ("source", "duplicate_of")]
        assert entry["similarity"] == pytest.approx(jaccard(*pair), abs=0.15)


def test_no_two_splits_have_texts_that_are_nearly_the_same(prepared: tuple[Path, Manifest]) -> None:
    directory, _ = prepared
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer/tokenizer.json"))
    kept = []
    for split in SPLITS:
        rows = Dataset(directory).split(split)
        tokens = rows.take(np.arange(len(rows)))["input_ids"].tolist()
        kept.append(tokenizer.decode_batch(tokens, skip_special_tokens=True))
    assert all(len(texts) > 20 for texts in kept)
    for ones, others in combinations(kept, 2):
        assert max(jaccard(one, other) for one in ones for other in others) < THRESHOLD


def test_what_is_found_is_what_comparing_all_pairs_finds(texts: list[str]) -> None:
    signatures = np.stack(Signer()(texts))
    parts = Signatures([signatures[:100], signatures[100:]])
    found = {(near.record, near.of) for near in near_duplicates(parts, THRESHOLD, np.ones(len(texts), dtype=bool))}
    expected = {
        (later, earlier)
        for earlier, later in combinations(range(len(texts)), 2)
        if np.mean(signatures[earlier] == signatures[later]) >= THRESHOLD
    }
    assert found == expected


@pytest.mark.parametrize("parts", [1, 3, 17])
@pytest.mark.parametrize("seed", range(5))
def test_rounds_over_parts_find_what_one_process_finds(parts: int, seed: int) -> None:
    signatures = families(seed)
    keys = np.arange(len(signatures), dtype=np.uint64)
    expected = list(near_duplicates(Signatures([signatures]), THRESHOLD, np.ones(len(keys), dtype=bool)))
    assert len(expected) > 100
    rows = [
        np.stack([hashes(signatures[:, columns]), np.full(len(keys), band, dtype=np.uint64), keys], axis=1)
        for band, columns in enumerate(bands_for(THRESHOLD))
    ]
    table = np.concatenate(rows)
    groups = [near_rounds.Groups(table[table[:, 0] % np.uint64(parts) == part]) for part in range(parts)]
    known, left, rounds = np.zeros((0, 2), np.uint64), 1, 0
    while left:
        said = np.concatenate(
            [near_rounds.verdicts(each, each.states(known), signatures.__getitem__, THRESHOLD) for each in groups]
        )
        states, now = near_rounds.states_of(said)
        assert now < left or not rounds, "each round settles some"
        known, left, rounds = np.stack([said[:, 0], states], axis=1), now, rounds + 1
    assert rounds > 2, "there are chains"
    found = [near_rounds.found(each, each.states(known), signatures.__getitem__, THRESHOLD) for each in groups]
    named = near_rounds.first_found(np.concatenate(found))
    assert [(int(key), int(of), round(int(same) / 128, 3)) for key, _, of, same in named] == [
        tuple(near) for near in expected
    ]


def test_what_is_open_keeps_others_open() -> None:
    # Each is like the next alone; what the second is, another part decides, and with it the third and the fourth.
    chain = [np.zeros(SIGNATURE_LENGTH, dtype=np.uint32)]
    for step in range(3):
        chain.append(chain[-1].copy())
        chain[-1][30 * step : 30 * step + 30] = step + 1
    signatures = np.stack(chain)
    parts = [
        near_rounds.Groups(np.array([[value, 0, key] for key in keys], dtype=np.uint64))
        for value, keys in ((7, (0, 1)), (8, (1, 2, 3)))
    ]
    said = [
        near_rounds.verdicts(part, part.states(np.zeros((0, 2), np.uint64)), signatures.__getitem__, THRESHOLD)
        for part in parts
    ]
    free, still_open = near_rounds.FREE, near_rounds.OPEN
    assert said[0].tolist() == [[0, free], [1, still_open]]
    assert said[1].tolist() == [[1, free], [2, still_open], [3, still_open]]


def families(seed: int) -> np.ndarray:
    """Signatures of 400 records: chains in which each is like the one before, in any order of the source."""
    generator = np.random.default_rng(seed)
    made: list[np.ndarray] = []
    for _ in range(25):
        made.append(generator.integers(0, 2**32, SIGNATURE_LENGTH, dtype=np.uint32))
        for _ in range(15):
            other = made[-generator.integers(1, 4)].copy() if len(made) > 3 else made[-1].copy()
            # Some values stay in all of a family, so that whole chains share a band.
            changes = 16 + generator.choice(SIGNATURE_LENGTH - 16, generator.integers(5, 45), replace=False)
            other[changes] = generator.integers(0, 2**32, len(changes), dtype=np.uint32)
            made.append(other)
    found: np.ndarray = generator.permutation(np.stack(made))
    return found


def test_parts_leave_the_dataset_of_one_process(
    prepared: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(judgement_plan, "NEAR_RECORDS_AT_ONCE", 10)
    monkeypatch.setattr(judgement_plan, "NEAR_ROWS_AT_ONCE", 2000)
    monkeypatch.setattr(judgement_plan, "RECORDS_AT_ONCE", 100)
    again = prepare_data(prepared_settings(prepared[0].parent / "t.jsonl"), tmp_path / "out")
    assert again.near_duplicates == 40
    assert sha256_of_tree(tmp_path / "out") == sha256_of_tree(prepared[0])


@pytest.mark.slow
def test_what_is_left_out_of_many_texts_is_nearly_what_exact_similarities_say() -> None:
    generator = random.Random(5)
    words = [document(generator) for _ in range(14_000)]
    words += [changed(words[number], generator, generator.randrange(1, 25)) for number in range(6_000)]
    generator.shuffle(words)
    texts = [" ".join(each) for each in words]
    best = exact_similarities(texts)
    signatures = np.stack(Signer()(texts))
    kept = np.ones(len(texts), dtype=bool)
    found = {near.record for near in near_duplicates(Signatures([signatures]), THRESHOLD, kept)}
    exact = {record for record, similarity in best.items() if similarity >= THRESHOLD}
    recall, precision = len(found & exact) / len(exact), len(found & exact) / len(found)
    print(
        f"recall {recall:.3f}, precision {precision:.3f} of {len(exact):,} near-duplicates among {len(texts):,} texts"
    )
    assert recall > 0.9
    assert precision > 0.9
    # What is not near the threshold is decided as it should be.
    clear = {record for record, similarity in best.items() if similarity >= THRESHOLD + 0.1}
    assert len(clear & found) / len(clear) > 0.99
    assert all(best.get(record, 0.0) >= THRESHOLD - 0.2 for record in found)


@pytest.mark.parametrize(
    ("texts", "similarity"),
    [
        # A boy and a girl: the vowel signs alone differ, in most words.
        (("लड़का किताब पढ़ता है और पानी पीता है", "लड़की किताब पढ़ती है और पानी पीती है"), 0.0),
        (("लड़का किताब पढ़ता है और पानी पीता है", "लड़का किताब पढ़ता है, और पानी पीता है।"), 1.0),
    ],
)
def test_words_are_whole_whatever_script_they_are_in(texts: tuple[str, str], similarity: float) -> None:
    assert jaccard(*texts) == similarity


def test_a_text_without_blanks_has_pieces_to_be_known_again_by() -> None:
    first, second = "ที่นี่มีน้ำดื่มเย็นๆ และมีที่นั่งพักสำหรับผู้ที่มาถึงก่อน", "ที่นี่มีน้ำดื่มเย็นๆ และมีที่นั่งพักสำหรับผู้ที่มาถึงทีหลัง"
    assert 0 < jaccard(first, second) < 1


def exact_similarities(texts: list[str]) -> dict[int, float]:
    """Of each text that shares words with one before it: how similar the most similar one is."""
    of_shingle: dict[bytes, list[int]] = {}
    sets = [shingles(text) for text in texts]
    best: dict[int, float] = {}
    for record, own in enumerate(sets):
        others = {other for shingle in own for other in of_shingle.get(shingle, ())}
        if others:
            best[record] = max(len(own & sets[other]) / len(own | sets[other]) for other in others)
        for shingle in own:
            of_shingle.setdefault(shingle, []).append(record)
    return best


def test_a_text_like_one_that_was_left_out_itself_is_kept() -> None:
    # Each is like the next, the first and the third are not alike: the second goes, and the third has nothing left.
    generator = random.Random(0)
    first = document(generator, 200)
    second = changed(first, generator, 5)
    third = changed(second, generator, 8)
    signatures = np.stack(Signer()([" ".join(words) for words in (first, second, third)]))
    similar = [float(np.mean(signatures[a] == signatures[b])) for a, b in ((0, 1), (1, 2), (0, 2))]
    threshold = (max(similar[2], 0.3) + min(similar[:2])) / 2
    assert similar[2] < threshold < min(similar[:2])
    found = list(near_duplicates(Signatures([signatures]), threshold, np.ones(3, dtype=bool)))
    assert [(near.record, near.of) for near in found] == [(1, 0)]


def test_signatures_do_not_depend_on_case_punctuation_or_the_process() -> None:
    first, second, third = Signer()(["A b c, d e; f.", "a B c d e f", "a b c d e g"])
    assert (first == second).all()
    assert (first != third).any()
    # What two runs and two machines compare must be the same; the numbers are datasketch's for its seed.
    assert first.dtype == np.uint32
    assert (Signer()(["a b c d e f"])[0] == first).all()


def test_near_duplicates_of_images_and_impossible_thresholds_are_refused() -> None:
    assert "among texts only" in PrepareSettings(near_duplicates=0.8).problems()[0]
    assert "near_duplicates is 1" in PrepareSettings(task="causal_lm", near_duplicates=1.0).problems()[1]


def test_units_and_shards_do_not_change_what_is_found(
    prepared: tuple[Path, Manifest], texts: list[str], tmp_path: Path
) -> None:
    for part in range(3):
        rows = [{"text": text} for text in [*texts, texts[0], ""][part * 90 : part * 90 + 90]]
        (tmp_path / "parts").mkdir(exist_ok=True)
        (tmp_path / f"parts/{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = PrepareSettings(
        source=str(tmp_path / "parts"), task="causal_lm", near_duplicates=THRESHOLD, sequence_length=1024,
        vocabulary_size=600, val_fraction=0.3, test_fraction=0.3, packing=False,
    )  # fmt: skip
    prepare_alone(settings, tmp_path / "out", 30_000)
    manifest = Dataset(tmp_path / "out").manifest
    assert {split: manifest.rows(split) for split in SPLITS} == {s: prepared[1].rows(s) for s in SPLITS}
    assert manifest.near_duplicates == 40
