"""Random pipelines, each also as the same program in plain Python, which tells what the steps are to be given."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

STEPS = """
from typing import List

from kfp import dsl
from kfp.dsl import Artifact, Input, Output

STEP = {"base_image": "python:3.11", "install_kfp_package": False}


@dsl.component(**STEP)
def say(tag: str, number: int = 0, text: str = "", numbers: List[int] = [], settings: dict = {}) -> str:
    with open("SAID", "a") as file:
        file.write(f"{tag} {number!r} {text!r} {numbers!r} {settings!r}\\n")
    return tag


@dsl.component(**STEP)
def add(number: int, other: int = 7) -> int:
    return number + other


@dsl.component(**STEP)
def some(number: int) -> List[int]:
    return list(range(number % 4))


@dsl.component(**STEP)
def total(numbers: List[int]) -> int:
    return sum(numbers)


@dsl.component(**STEP)
def make(text: str, made: Output[Artifact]):
    with open(made.path, "w") as file:
        file.write(text)


@dsl.component(**STEP)
def read(made: Input[Artifact]) -> str:
    with open(made.path) as file:
        return file.read()


@dsl.component(**STEP)
def end(status: dsl.PipelineTaskFinalStatus):
    with open("SAID", "a") as file:
        file.write(f"ended {status.state}\\n")


@dsl.pipeline(name="random")
def pipeline(number: int = 3, text: str = "a b", numbers: List[int] = [2, 4]):
"""
PLAIN_STEPS = """
SAID = []


def say(tag, number=0, text="", numbers=[], settings={}):
    SAID.append(f"{tag} {number!r} {text!r} {numbers!r} {settings!r}")
    return tag


def add(number, other=7):
    return number + other


def some(number):
    return list(range(number % 4))


def total(numbers):
    return sum(numbers)


def make(text):
    return text


def read(made):
    return made


def pipeline(number=3, text="a b", numbers=[2, 4]):
"""
#: How a value is written: in KFP, and in plain Python.
_Written = tuple[str, str]
_CONSTANTS: dict[str, list[Any]] = {
    "number": [0, 1, 3, -5, 10**6],
    "text": ["", "it's", "{x}", "é\n", "1", "true"],
    "numbers": [[], [3], [0, -1, 4]],
}
_KNOWN = [("number", ("number", "number")), ("text", ("text", "text")), ("numbers", ("numbers", "numbers"))]


@dataclass
class RandomPipeline:
    """A pipeline of steps in loops and branches, up to three within each other.

    Attributes:
        seed: makes it.
        kfp: the text of its file.
        plain: the same program, which leaves in `SAID` what steps say.
    """

    seed: int
    kfp: str = field(default=STEPS, init=False)
    plain: str = field(default=PLAIN_STEPS, init=False)

    def __post_init__(self) -> None:
        self._random, self._names = Random(self.seed), 0
        #: Lists that loops around are over: KFP gives the items of such loops one name, which is refused.
        self._around: list[_Written] = []
        has_handler = self._random.random() < 0.3
        if has_handler:
            self._line(1, "with dsl.ExitHandler(end()):", "if True:")
        self._block(1 + has_handler, list(_KNOWN), most=8, depth=0)
        if has_handler:
            self.plain += "    SAID.append('ended SUCCEEDED')\n"
        self.plain += "\n\npipeline()\n"

    def said(self) -> list[str]:
        """What its steps say, sorted."""
        found: dict[str, Any] = {}
        exec(self.plain, found)
        return sorted(found["SAID"])

    def _line(self, indent: int, kfp: str, plain: str) -> None:
        self.kfp += "    " * indent + kfp + "\n"
        self.plain += "    " * indent + plain + "\n"

    def _new(self, what: str) -> str:
        self._names += 1
        return f"{what}_{self._names}"

    def _value(self, known: list[tuple[str, _Written]], kind: str) -> _Written:
        """A known value of a kind, a constant, or for texts and lists one with a known value in it."""
        found = [written for each, written in known if each == kind]
        chance = self._random.random()
        if found and chance < 0.6:
            return self._random.choice(found)
        if kind != "number" and chance < 0.8:
            kfp, plain = self._random.choice([written for each, written in known if each == "number"])
            return (f'f"its {{{kfp}}}"', f'f"its {{{plain}}}"') if kind == "text" else (f"[{kfp}, 1]", f"[{plain}, 1]")
        constant = repr(self._random.choice(_CONSTANTS[kind]))
        return constant, constant

    def _block(self, indent: int, known: list[tuple[str, _Written]], most: int, depth: int) -> None:
        for _ in range(self._random.randint(1, most)):
            kinds = [self._step, self._step, self._step]
            if depth < 3:
                kinds += [self._branches, self._loop]
            self._random.choice(kinds)(indent, known, depth)

    def _step(self, indent: int, known: list[tuple[str, _Written]], depth: int) -> None:
        name, made = self._new("step"), ""
        if artifacts := [written for each, written in known if each == "artifact"]:
            made = self._random.choice(["say", "read"])
        step = self._random.choice(["say", "say", "add", "some", "total", "make", made or "say"])
        if step == "read":
            given = {"made": self._random.choice(artifacts)}
        else:
            takes = {"say": "number text numbers", "total": "numbers", "make": "text"}.get(step, "number").split()
            given = {each: self._value(known, each) for each in takes}
        if step == "say":
            given["tag"] = (repr(name), repr(name))
            kfp, plain = given["number"]
            given["settings"] = (f"{{'its': {kfp}}}", f"{{'its': {plain}}}")
        kfp, plain = (", ".join(f"{each}={written[of]}" for each, written in given.items()) for of in (0, 1))
        self._line(indent, f"{name} = {step}({kfp})", f"{name} = {step}({plain})")
        kind = {"say": "text", "read": "text", "some": "numbers", "make": "artifact"}.get(step, "number")
        known.append((kind, (f"{name}.outputs['made']" if step == "make" else f"{name}.output", name)))

    def _branches(self, indent: int, known: list[tuple[str, _Written]], depth: int) -> None:
        for branch in ["If", *self._random.choice([[], ["Elif"], ["Else"], ["Elif", "Else"], ["Elif", "Elif"]])]:
            kfp, plain = self._random.choice([written for each, written in known if each == "number"])
            compared = f"{self._random.choice(['==', '!=', '>', '<='])} {self._random.choice([0, 1, 3])}"
            if branch == "Else":
                self._line(indent, "with dsl.Else():", "else:")
            else:
                self._line(indent, f"with dsl.{branch}({kfp} {compared}):", f"{branch.lower()} {plain} {compared}:")
            self._block(indent + 1, list(known), most=2, depth=depth + 1)

    def _loop(self, indent: int, known: list[tuple[str, _Written]], depth: int) -> None:
        item, inside, all_of_it = self._new("item"), list(known), self._new("all")
        fields_of_rates = [(f"{item}.a", f"{item}['a']"), (f"{item}.b", f"{item}['b']")]
        choices = [(("[1, 2]", "[1, 2]"), [(item, item)]), ((repr(_RATES), repr(_RATES)), fields_of_rates)]
        if lists := [written for each, written in known if each == "numbers" and written not in self._around]:
            choices += [(self._random.choice(lists), [(item, item)])] * 2
        items, fields = self._random.choice(choices)
        self._around.append(items)
        inside += [("number", each) for each in fields]
        self._line(indent, f"with dsl.ParallelFor({items[0]}) as {item}:", f"{all_of_it} = []")
        self.plain += "    " * indent + f"for {item} in {items[1]}:\n"
        added = self._new("step")
        self._line(indent + 1, f"{added} = add(number={fields[0][0]})", f"{added} = add(number={fields[0][1]})")
        self.plain += "    " * (indent + 1) + f"{all_of_it}.append({added})\n"
        self._block(indent + 1, [*inside, ("number", (f"{added}.output", added))], most=2, depth=depth + 1)
        self._around.pop()
        name = self._new("step")
        self._line(
            indent, f"{name} = total(numbers=dsl.Collected({added}.output))", f"{name} = total(numbers={all_of_it})"
        )
        known.append(("number", (f"{name}.output", name)))


class RandomNested(RandomPipeline):
    """One with pipelines in it, which have loops and branches as well."""

    def __post_init__(self) -> None:
        self._random, self._names = Random(self.seed), 0
        self._around = []
        self._pipelines: list[str] = []
        self.kfp, self.plain = STEPS.rpartition("@dsl.pipeline")[0], PLAIN_STEPS.rpartition("def pipeline")[0]
        for number in range(self._random.randint(1, 2)):
            taken = f"def inner_{number}(number: int, text: str = 'own', numbers: List[int] = [8])"
            self._line(0, f"@dsl.pipeline\n{taken} -> int:", f"{taken.replace('List[int]', 'list')}:")
            self._line(1, "first = add(number=number)", "first = add(number)")
            self._block(1, [*_KNOWN, ("number", ("first.output", "first"))], most=3, depth=1)
            self._line(1, "return first.output\n\n", "return first\n\n")
            self._pipelines.append(f"inner_{number}")
        self.kfp += STEPS[STEPS.rindex("@dsl.pipeline") :]
        self.plain += PLAIN_STEPS[PLAIN_STEPS.rindex("def pipeline") :]
        self._block(1, list(_KNOWN), most=6, depth=0)
        self.plain += "\n\npipeline()\n"

    def _step(self, indent: int, known: list[tuple[str, _Written]], depth: int) -> None:
        if not self._pipelines or self._random.random() < 0.6:
            super()._step(indent, known, depth)
            return
        name, called = self._new("inner"), self._random.choice(self._pipelines)
        given = {each: self._value(known, each) for each in ("number", *self._random.choice([(), ("text", "numbers")]))}
        kfp, plain = (", ".join(f"{each}={written[of]}" for each, written in given.items()) for of in (0, 1))
        self._line(indent, f"{name} = {called}({kfp})", f"{name} = {called}({plain})")
        known.append(("number", (f"{name}.output", name)))


_RATES = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
