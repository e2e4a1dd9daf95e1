"""Records of written text: all of it in a file of lines, the worst and the best in `evaluation.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpu_pipelines.artifacts.evaluation import GENERATED
from gpu_pipelines.evaluation.generation.scores import ScoresWithText
from gpu_pipelines.evaluation.generation.text_scoring import TextScoring
from gpu_pipelines.evaluation.scores import Scores
from gpu_pipelines.numbers import finite_or_none

#: Examples of each kind, and characters of a text in them.
WORST_SHOWN, BEST_SHOWN = 8, 3
CHARACTERS_SHOWN = 600


def texts_json(scoring: TextScoring, scores: ScoresWithText, champion: Scores | None) -> dict[str, Any]:
    """What `evaluation.json` says about the text on test.

    Args:
        scoring: what scored it.
        scores: of the model.
        champion: scores of the champion, if it was scored.
    """
    answers, request = scores.answers, scoring.request
    found: dict[str, Any] = {
        "metrics": list(scores.texts.names),
        "rows": len(answers),
        "of": scoring.prompts_in("test"),
        "max_new_tokens": request.max_new_tokens,
        "written_by": scores.written_by,
        "cut": sum(not answer.ended for answer in answers),
        "examples": _examples(scores, champion),
    }
    if judged := [answer.judgement for answer in answers if answer.judgement is not None]:
        failed = [judgement.failure for judgement in judged if judgement.score is None]
        found["judge"] = {"address": request.judge.judge, "model": request.judge.judge_model, "failed": len(failed)}
        found["judge"] |= {"first_failure": failed[0]} if failed else {}
    return found


def write_texts(directory: Path, scores: ScoresWithText, champion: Scores | None) -> None:
    """Writes `generated.jsonl`: a line for each row that text was written for, in the order of the rows."""
    with (directory / GENERATED).open("w", encoding="utf-8") as file:
        for place in range(len(scores.answers)):
            line = _line(scores, place)
            if isinstance(champion, ScoresWithText):
                line["champion"] = {
                    name: value
                    for name, value in _line(champion, place).items()
                    if name not in ("row", "source", "prompt", "reference")
                }
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def _line(scores: ScoresWithText, place: int) -> dict[str, Any]:
    answer = scores.answers[place]
    line: dict[str, Any] = {
        "row": answer.row,
        "source": answer.source,
        "prompt": answer.prompt,
        "reference": answer.reference,
        "text": answer.text,
        "tokens": answer.tokens,
        "ended": answer.ended,
        "scores": _figures(scores, place),
    }
    if answer.judgement is not None:
        failure = {"failure": answer.judgement.failure} if answer.judgement.failure else {}
        line["judge"] = {"said": answer.judgement.said, **failure}
    return line


def _figures(scores: ScoresWithText, place: int) -> dict[str, float | None]:
    return {
        name: finite_or_none(float(value))
        for name, value in zip(scores.texts.names, scores.texts.sums[place], strict=True)
    }


def _examples(scores: ScoresWithText, champion: Scores | None) -> list[dict[str, Any]]:
    """The rows that the model answers worst, then those that it answers best, by its metrics in their order."""
    figures = np.nan_to_num(scores.texts.sums, nan=np.inf)
    order = np.lexsort(figures.T[::-1]).tolist()
    # Rows that are as good as the best one are no bad ones, few as the others may be.
    worst = [place for place in order if (figures[place] != figures[order[-1]]).any()][:WORST_SHOWN]
    best = [place for place in reversed(order) if place not in worst and np.isfinite(scores.texts.sums[place]).all()]
    found = []
    for kind, places in (("worst", worst), ("best", best[:BEST_SHOWN])):
        for place in places:
            example = {"kind": kind, **_shortened(_line(scores, place))}
            if isinstance(champion, ScoresWithText):
                example["champion"] = _shortened({"text": champion.answers[place].text})["text"]
            found.append(example)
    return found


def _shortened(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line without what is long: of a prompt its end is kept, of other texts their beginning."""
    found = dict(line)
    for name in ("reference", "text"):
        if len(text := found.get(name, "")) > CHARACTERS_SHOWN:
            found[name] = f"{text[:CHARACTERS_SHOWN]}…"
    if len(prompt := found.get("prompt", "")) > CHARACTERS_SHOWN:
        found["prompt"] = f"…{prompt[-CHARACTERS_SHOWN:]}"
    if "judge" in found:
        found["judge"] = {name: text[:CHARACTERS_SHOWN] for name, text in found["judge"].items()}
    return found
