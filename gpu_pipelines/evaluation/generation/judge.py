"""A language model that judges answers, over OpenAI's interface, which most servers offer."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpu_pipelines.errors import UserError
from gpu_pipelines.evaluation.generation.judge_settings import HIGHEST_SCORE, JudgeSettings
from gpu_pipelines.network_errors import TRUST_REMEDY, UNAVAILABLE, error_of_status, untrusted_certificate

#: Questions that are under way at the same time.
_AT_ONCE = 8
_TRIES = 5
#: Seconds before the second try; the waits double. A server that names a longer one is obeyed up to the last.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 60.0
_CONNECT_SECONDS, _ANSWER_SECONDS = 10.0, 300.0
#: Rows after one another that nobody answers, after which the others are not asked about any more.
_MOST_IN_A_ROW = 20
#: Whoever is not known, or asks for a model that is not there, is not answered the next time either.
_NEVER_ANSWERED = (401, 403, 404)
_SCORE = re.compile(r"score\W{0,4}(-?[0-9]+(?:\.[0-9]+)?)", re.IGNORECASE)
_SHOWN = 200


class Question(NamedTuple):
    """What is judged: the prompt, the text that was written after it, and the reference."""

    prompt: str
    answer: str
    reference: str


@dataclass(frozen=True)
class Judgement:
    """The result of a question.

    Attributes:
        score: 0 to 10; None if there is none.
        said: the judge's whole answer.
        failure: why there is no score.
    """

    score: float | None
    said: str = ""
    failure: str = ""


class _NoAnswerError(Exception):
    """A question that was not answered, as often as it was asked.

    Args:
        failure: why.
        status: of HTTP; None where nobody answered at all.
        is_passing: whether it may be answered later.
        wait: seconds that the server asks to wait.
    """

    def __init__(self, failure: str, status: int | None, is_passing: bool, wait: float = 0.0) -> None:
        super().__init__(failure)
        self.failure, self.status, self.is_passing, self.wait = failure, status, is_passing, wait


class Judge:
    """Asks for a score of each answer. The same question is asked once.

    Args:
        settings: the address, the model and the question; checked.
        first_wait: seconds before a question is asked again.

    Raises:
        UserError: the key is not in the given place.
    """

    def __init__(self, settings: JudgeSettings, first_wait: float = _FIRST_WAIT) -> None:
        import requests

        self._settings = settings
        self._key = settings.key()
        self._session = requests.Session()
        self._address = f"{settings.judge.rstrip('/')}/chat/completions"
        self._first_wait = first_wait
        self._takes_temperature = True
        self._known: dict[Question, Judgement] = {}
        self._unanswered = 0
        self._lock = threading.Lock()

    def judged(self, questions: Sequence[Question]) -> list[Judgement]:
        """A judgement of each answer; one without a score says why.

        Raises:
            UserError: the judge cannot be reached, refuses the key or the model, or gives no score for any answer.
        """
        new = [question for question in dict.fromkeys(questions) if question not in self._known]
        # The first one alone: what is wrong with address, key or model is met once.
        self._known.update({question: self._judgement(question, is_first=True) for question in new[:1]})
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self._known.update(zip(new[1:], pool.map(self._judgement, new[1:]), strict=True))
        found = [self._known[question] for question in questions]
        if found and all(judgement.score is None for judgement in found):
            raise UserError(
                f"The judge {self._settings.judge} gave no score for any of {len(found):,} answers. The first: "
                f"{found[0].failure}.",
                "Ask its model by hand, with judge_prompt and the form of the answer.",
            )
        return found

    def _judgement(self, question: Question, is_first: bool = False) -> Judgement:
        if self._unanswered >= _MOST_IN_A_ROW:
            return Judgement(None, failure=f"not asked: {_MOST_IN_A_ROW} rows before it were not answered")
        try:
            said = self._asked(question)
        except _NoAnswerError as error:
            if error.status in _NEVER_ANSWERED or (is_first and error.is_passing):
                raise self._explained(error) from None
            with self._lock:
                self._unanswered += 1
            return Judgement(None, failure=error.failure)
        with self._lock:
            self._unanswered = 0
        return self._read(said)

    @staticmethod
    def _read(said: str) -> Judgement:
        """The last score in what the judge said."""
        found = _SCORE.findall(said)
        score = float(found[-1]) if found else -1.0
        if 0 <= score <= HIGHEST_SCORE:
            return Judgement(score, said)
        why = (
            f"the score {found[-1]} is not from 0 to {HIGHEST_SCORE:g}" if found else "there is no score in the answer"
        )
        return Judgement(None, said, why)

    def _asked(self, question: Question) -> str:
        """What the judge says; asks again where that may help."""
        text = self._settings.question(*question)
        wait = self._first_wait
        for attempt in range(_TRIES):
            try:
                return self._sent(text)
            except _NoAnswerError as error:
                if not error.is_passing or attempt == _TRIES - 1:
                    raise
                time.sleep(min(_LONGEST_WAIT, max(wait, error.wait)))
                wait *= 2
        raise AssertionError("unreachable")

    def _sent(self, text: str) -> str:
        import requests

        body: dict[str, Any] = {
            "model": self._settings.judge_model,
            "messages": [{"role": "user", "content": text}],
        }
        with_temperature = self._takes_temperature
        try:
            response = self._session.post(
                self._address,
                json={**body, "temperature": 0} if with_temperature else body,
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                timeout=(_CONNECT_SECONDS, _ANSWER_SECONDS),
                allow_redirects=False,
            )
        except requests.RequestException as error:
            reason = untrusted_certificate(error)
            failure = f"its certificate is not trusted ({reason})" if reason else f"{type(error).__name__}"
            raise _NoAnswerError(failure, None, is_passing=not reason) from None
        if response.status_code == 400 and with_temperature and "temperature" in response.text:
            # Models that think choose it themselves.
            self._takes_temperature = False
            return self._sent(text)
        if response.status_code != 200:
            raise _NoAnswerError(
                f"HTTP status {response.status_code}: {self._message(response)}",
                response.status_code,
                is_passing=response.status_code in UNAVAILABLE,
                wait=_seconds(response.headers.get("Retry-After", "")),
            )
        return _content(response)

    def _message(self, response: Any) -> str:
        """What a server says of an error, without the key, which some repeat."""
        try:
            found = response.json()
            error = found.get("error", found)
            text = str(error.get("message", error) if isinstance(error, dict) else error)
        except (ValueError, AttributeError):
            text = str(response.text)
        if self._key:
            text = text.replace(self._key, "(key)")
        return " ".join(text.split())[:_SHOWN] or "no message"

    def _explained(self, error: _NoAnswerError) -> UserError:
        problem = f"The judge {self._settings.judge} did not answer: {error.failure}."
        if error.status in (401, 403):
            remedy = "Name the variable or the secret that holds its key with judge_key."
        elif error.status == 404:
            remedy = f"Is judge the address before /chat/completions, and {self._settings.judge_model} its model?"
        elif "certificate" in error.failure:
            remedy = TRUST_REMEDY
        else:
            remedy = "Does it run, and is the address right? Without judge in generate it is not asked."
        return error_of_status(error.status or (503 if error.is_passing else None), problem, remedy)


def _seconds(said: str) -> float:
    """What `Retry-After` says; a date, which it may be as well, counts as nothing."""
    return float(said) if said.isdecimal() else 0.0


def _content(response: Any) -> str:
    """The text of an answer."""
    try:
        found = response.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        found = None
    if not isinstance(found, str) or not found:
        raise _NoAnswerError("an answer without text", response.status_code, is_passing=False)
    return found
