"""Shows KFP the types of a file with `from __future__ import annotations`, which keeps them as texts."""

from __future__ import annotations

import ast
import inspect
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, FunctionType, ModuleType
from typing import Any

#: The name of `LoaderWithTypes.with_types` in a changed file, which the file itself cannot use.
_CALLED = "_gpu_pipelines_with_types"


class LoaderWithTypes(SourceFileLoader):
    """Loads a Python file in which decorated functions have types as annotations, even with that import.

    KFP reads annotations when it decorates a function, and does not take a text for a type.

    Attributes:
        unresolved: messages about decorated functions whose annotations use undefined names.
    """

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name, path)
        self.unresolved: list[str] = []

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file, from its text: Python's cached code lacks the change."""
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        if _postpones(tree):
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and node.decorator_list:
                    # The last decorator is called first.
                    at = node.decorator_list[-1]
                    node.decorator_list.append(ast.copy_location(ast.Name(_CALLED, ast.Load()), at))
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Runs the file."""
        vars(module)[_CALLED] = self.with_types
        super().exec_module(module)

    def with_types(self, function: Any) -> Any:
        """A function with types as annotations; unchanged if its annotations use undefined names."""
        if isinstance(function, FunctionType):
            # If a function makes pipelines, its own names as well.
            around = sys._getframe(1).f_locals
            try:
                function.__annotations__ = inspect.get_annotations(function, locals=around, eval_str=True)
            except Exception as error:  # an annotation may be any expression
                name = function.__name__
                self.unresolved.append(
                    f"An annotation of {name} is not a type: {error}. KFP needs it where {name} is decorated: import "
                    "it before, and not under TYPE_CHECKING."
                )
        return function


def _postpones(tree: ast.Module) -> bool:
    """Whether a file has `from __future__ import annotations`."""
    future = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    return any(each.name == "annotations" for node in future for each in node.names)
