"""Loops and branches that KFP's compiler gets wrong, fixed while it compiles a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpu_pipelines.targets.kfp_parts import Replacement, replaced

#: The component of a loop, of a branch or of an exit handler; two pipelines number theirs alike.
_OF_A_GROUP = re.compile(r"comp-(condition|condition-branches|for-loop|exit-handler)-[-\d]+")


@contextmanager
def mended_groups() -> Iterator[None]:
    """Makes KFP compile loops and branches as they are written, as long as the context lasts.

    Otherwise steps that follow a loop become steps of the loop, if that ends with `dsl.If` and `dsl.Elif` without
    `dsl.Else`. And loops and branches lack inputs that steps within them need
    (https://github.com/kubeflow/pipelines/issues/13273). And those of a pipeline get the steps of one within it.
    """
    from kfp.dsl.tasks_group import TasksGroup

    if TasksGroup.__exit__.__module__ == __name__:  # this file is run by another that is a pipeline
        yield
        return
    with replaced(_replacements, "compiles loops and branches"):
        yield


def _replacements() -> list[Replacement]:
    """What is replaced of the compiler."""
    from kfp.compiler import compiler_utils, pipeline_spec_builder
    from kfp.dsl.for_loop import LoopArgumentVariable
    from kfp.dsl.tasks_group import Elif, Else, TasksGroup

    return [
        (Elif, "__init__", _following_a_branch),
        (Else, "__init__", _following_a_branch),
        (TasksGroup, "__exit__", _closing_its_branches),
        (LoopArgumentVariable, "__init__", _of_its_own_type),
        (compiler_utils, "get_inputs_for_all_groups", _with_all_inputs),
        (pipeline_spec_builder, "_merge_component_spec", _with_inner_groups_apart),
    ]


def _closing_its_branches(original: Callable[..., Any]) -> Callable[..., Any]:
    """Ends the group of all branches with an `Elif`, as KFP does with an `Else`: there may be none."""
    from kfp.dsl.pipeline_context import Pipeline
    from kfp.dsl.tasks_group import Elif

    def leave(group: Any, *error: Any) -> None:
        original(group, *error)
        if isinstance(group, Elif):
            Pipeline.get_default_pipeline().pop_tasks_group()

    return leave


def _following_a_branch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Opens the group of all branches again for one that follows an `Elif`."""
    from kfp.dsl.pipeline_context import Pipeline
    from kfp.dsl.tasks_group import ConditionBranches, Elif

    def begin(branch: Any, *given: Any, **named: Any) -> None:
        pipeline = Pipeline.get_default_pipeline()
        branches = pipeline.get_last_tasks_group()
        if isinstance(branches, ConditionBranches) and isinstance(branches.groups[-1], Elif):
            pipeline.groups.append(branches)
        original(branch, *given, **named)

    return begin


def _of_its_own_type(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a field of an item that is written in the pipeline the type of its values; KFP gives that of the first."""

    def begin(field: Any, loop_argument: Any, subvar_name: str) -> None:
        original(field, loop_argument, subvar_name)
        items = loop_argument.items_or_pipeline_channel
        if isinstance(items, list):
            kinds = {type(item[subvar_name]) for item in items if isinstance(item, dict) and subvar_name in item}
            kinds = {float} if kinds == {int, float} else kinds
            if len(kinds) == 1:
                field.channel_type = kinds.pop().__name__

    return begin


def _with_all_inputs(original: Callable[..., Any]) -> Callable[..., Any]:
    """Gives each group what its steps need: items in texts, items of which they take a field, what a loop is over."""
    from kfp.dsl.for_loop import LoopArgumentVariable

    def inputs_of_groups(**given: Any) -> Any:
        tasks, loops = given["pipeline"].tasks.values(), given["name_to_for_loop_group"]
        within = {loop.loop_argument.pattern: name for name, loop in loops.items()}
        items = [loop.loop_argument for loop in loops.values()]
        of_loops = {
            each.pattern: each for item in items for each in (item, *getattr(item, "_referenced_subvars", {}).values())
        }
        for task in tasks:
            # In a text, KFP takes an item for an input of the pipeline, or for an output of a step.
            task._channel_inputs = [of_loops.get(each.pattern, each) for each in task.channel_inputs]
        inputs = original(**given)
        for group, channels in inputs.items():
            around = set(given["group_name_to_parent_groups"].get(group, ())) - {group}
            of_fields = [each.loop_argument for each, _ in channels if isinstance(each, LoopArgumentVariable)]
            channels |= {(item, None) for item in of_fields if within.get(item.pattern) in around}
        for task in tasks:
            groups = given["task_name_to_parent_groups"].get(task.name, ())
            for channel in (*task.channel_inputs, *given["condition_channels"][task.name]):
                _pass_down(channel, [inputs[group] for group in groups])
        return inputs

    return inputs_of_groups


def _with_inner_groups_apart(original: Callable[..., None]) -> Callable[..., None]:
    """Names the groups of a pipeline within another apart: KFP looks for the components of groups by these names."""
    from kfp.dsl.utils import make_name_unique_by_adding_index

    def merge(main_pipeline_spec: Any, sub_pipeline_spec: Any) -> None:
        parts = sub_pipeline_spec.components
        new = {}
        for name in filter(_OF_A_GROUP.fullmatch, list(parts)):
            inner = name.replace("comp-", "comp-inner-", 1)
            new[name] = make_name_unique_by_adding_index(inner, list(parts), "-")
            parts[new[name]].CopyFrom(parts[name])
            del parts[name]
        for part in (sub_pipeline_spec.root, *parts.values()):
            for task in part.dag.tasks.values():
                task.component_ref.name = new.get(task.component_ref.name, task.component_ref.name)
        original(main_pipeline_spec=main_pipeline_spec, sub_pipeline_spec=sub_pipeline_spec)

    return merge


def _pass_down(channel: Any, groups: Sequence[set[tuple[Any, str | None]]]) -> None:
    """Gives a channel to all groups within one that has it."""
    from kfp.dsl.for_loop import LoopArgumentVariable, LoopParameterArgument

    if isinstance(channel, LoopParameterArgument | LoopArgumentVariable):
        return
    is_there = False
    for inputs in groups:
        has_it = any(each.pattern == channel.pattern for each, _ in inputs)
        if is_there and not has_it:
            inputs.add((channel, None))
        is_there = is_there or has_it
