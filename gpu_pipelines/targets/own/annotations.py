"""Lets KFP see the types of a file with `from __future__ import annotations`, which leaves it their texts alone."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any

#: What a changed file calls `LoaderWithTypes.with_types` by: no name that it could have itself.
_CALLED = "_gpu_pipelines_with_types"


class LoaderWithTypes(SourceFileLoader):
    """Loads a Python file in which functions that are decorated have types for annotations, whatever the file says.

    KFP reads annotations where it decorates a function, and takes a text for no type.

    Attributes:
        unresolved: what to say of decorated functions whose annotations name what is not there.
    """

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name, path)
        self.unresolved: list[str] = []

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file, from its text: what Python has kept of it is without the change."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        if _postpones(tree):
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and node.decorator_list:
                    # The last is called first.
                    at = node.decorator_list[-1]
                    node.decorator_list.append(ast.copy_location(ast.Name(_CALLED, ast.Load()), at))
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Runs the file."""
        vars(module)[_CALLED] = self.with_types
        super().exec_module(module)

    def with_types(self, function: Any) -> Any:
        """A function with types for annotations; one whose annotations name what is not there is left as it is."""
        if isinstance(function, FunctionType):
            # Where a function makes pipelines, its own names as well.
            around = sys._getframe(1).f_locals
            try:
                function.__annotations__ = inspect.get_annotations(function, locals=around, eval_str=True)
            except Exception as error:  # an annotation may be any expression
                name = function.__name__
                self.unresolved.append(
                    f"An annotation of {name} is of no type: {error}. KFP needs it where {name} is decorated: import "
                    "it before, and not under TYPE_CHECKING."
                )
        return function


def _postpones(tree: ast.Module) -> bool:
    """Whether a file has `from __future__ import annotations`."""
    future = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    return any(each.name == "annotations" for node in future for each in node.names)
