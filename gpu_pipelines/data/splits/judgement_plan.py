"""How a judgement on all records of a source is cut in pieces: by the source and the settings alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_pipelines.data.settings import PrepareSettings
from gpu_pipelines.data.splits.near_duplicates import bands_for
from gpu_pipelines.data.splits.ranges import shards_of

#: Records of a range, on average, and the most groups that shards are taken together in.
RECORDS_AT_ONCE = 2_000_000
MOST_GROUPS = 1024
#: Records among which one process looks for near-duplicates; of more, the rows of a part of their bands.
NEAR_RECORDS_AT_ONCE, NEAR_ROWS_AT_ONCE = 2_000_000, 8_000_000


@dataclass(frozen=True)
class Plan:
    """What is to be judged, and how it is cut.

    Attributes:
        uri: of the unfinished work, in which there is an index of each shard.
        settings: what is left out, and the split.
        shards: number of all shards.
        of_test: number of those of the test source, which come first.
        ranges: of hashes of contents.
        in_group: shards that are taken together.
        near_parts: in which near-duplicates are looked for; 1 where one process can hold all records.
    """

    uri: str
    settings: PrepareSettings
    shards: int
    of_test: int
    ranges: int
    in_group: int
    near_parts: int = 1

    @classmethod
    def of(cls, uri: str, settings: PrepareSettings, shards: int, of_test: int, records: int) -> Plan:
        """The plan for so many shards and usable records."""
        ranges = max(1, -(-records // RECORDS_AT_ONCE))
        near_parts = 1
        if settings.near_duplicates and records > NEAR_RECORDS_AT_ONCE:
            near_parts = -(-records * len(bands_for(settings.near_duplicates)) // NEAR_ROWS_AT_ONCE)
        return cls(uri, settings, shards, of_test, ranges, -(-shards // MOST_GROUPS), near_parts)

    @property
    def groups(self) -> int:
        return -(-self.shards // self.in_group)

    @property
    def shares(self) -> tuple[float, float]:
        """The fractions of val and test, of what is not in the test source."""
        return self.settings.val_fraction, 0.0 if self.settings.test_source else self.settings.test_fraction

    def range_of(self, contents: np.ndarray) -> np.ndarray:
        """The range that each content is in."""
        edges = np.array([(number << 64) // self.ranges for number in range(1, self.ranges)], dtype=np.uint64)
        return np.searchsorted(edges, contents, side="right")

    def group_of(self, keys: np.ndarray) -> np.ndarray:
        """The group of shards that each record is in."""
        return shards_of(keys) // self.in_group

    def shards_in(self, group: int) -> range:
        return range(group * self.in_group, min(self.shards, (group + 1) * self.in_group))
