"""The split of a record is a function of its content: stable, shared by duplicates, of the right size."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits.content_split import content_number, split_at

ROWS = 20_000


def splits(val: float, test: float, seed: int = 0) -> list[str]:
    return [split_at(content_number(b"record %d" % n, seed), val, test) for n in range(ROWS)]


@pytest.mark.parametrize(("val", "test"), [(0.1, 0.1), (0.05, 0.3), (0.49, 0.49), (0.001, 0.2)])
@pytest.mark.parametrize("seed", [0, 7, -3])
def test_shares_are_as_asked_within_five_standard_errors(val: float, test: float, seed: int) -> None:
    counts = Counter(splits(val, test, seed))
    for split, share in {"val": val, "test": test, "train": 1 - val - test}.items():
        error = (share * (1 - share) / ROWS) ** 0.5
        assert abs(counts[split] / ROWS - share) < 5 * error


def test_another_seed_gives_an_independent_split() -> None:
    one, two = splits(0.2, 0.2, seed=1), splits(0.2, 0.2, seed=2)
    assert one != two
    in_both = sum(a == b == "test" for a, b in zip(one, two, strict=True)) / ROWS
    assert abs(in_both - 0.2 * 0.2) < 5 * (0.04 * 0.96 / ROWS) ** 0.5


def test_changing_the_share_of_val_leaves_test_as_it_is() -> None:
    small, large = splits(0.05, 0.1), splits(0.4, 0.1)
    assert [s == "test" for s in small] == [s == "test" for s in large]
    assert all(b == "val" for a, b in zip(small, large, strict=True) if a == "val")


def test_the_split_is_the_same_in_every_version_of_the_program() -> None:
    # A new release must not deal a champion's training rows into the test split.
    got = [split_at(content_number(b"%d" % n), 0.25, 0.25) for n in range(12)]
    assert " ".join(got) == "train val train train train test test train test val train val"


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.binary(), st.integers(-(10**18), 10**18))
def test_equal_content_shares_a_number(content: bytes, seed: int) -> None:
    assert content_number(content, seed) == content_number(bytes(bytearray(content)), seed)


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_a_seed_too_large_to_use_is_refused_beforehand(seed: int) -> None:
    try:
        content_number(b"x", seed)
    except OverflowError:
        assert any("split_seed" in problem for problem in PrepareSettings(split_seed=seed).problems())
