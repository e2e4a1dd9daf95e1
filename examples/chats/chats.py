"""Writes chats.jsonl: questions about functions of Python's library, and what their docstrings answer."""

import ast
import json
import sysconfig
from pathlib import Path

rows = []
for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
    for node in ast.walk(ast.parse(file.read_bytes())):
        answer = (ast.get_docstring(node) or "").partition("\n")[0] if isinstance(node, ast.FunctionDef) else ""
        if 20 <= len(answer) <= 160:
            question = f"What does {file.stem}.{node.name} do?"
            rows.append({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})
Path("chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:600]), encoding="utf-8")
print(f"{len(rows[:600])} conversations")
