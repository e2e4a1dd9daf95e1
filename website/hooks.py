"""What MkDocs asks while it builds the site (`hooks` in mkdocs.yml): pages from elsewhere, generated ones, links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commands import command_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pages import FILES, ROOT, files_shown, for_site, pages, shown_file
from tutorials import page as tutorial

MERMAID = Path("build/mermaid.min.js")


def on_files(files: Files, config: MkDocsConfig, **others: Any) -> Files:
    """Adds the pages that lie elsewhere than in docs/, those that are generated, and what browsers run."""
    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        files.remove(file)
    generated = dict(command_pages())
    for path, place in pages().items():
        if path.endswith(".ipynb"):
            generated[place] = tutorial(Path(path).stem)
        elif not path.startswith("docs/"):
            generated[place] = (ROOT / path).read_text(encoding="utf-8")
    for path in files_shown():
        # They are not looked for: whoever searches wants the page that speaks of the file.
        generated[f"{FILES}{path}.md"] = f"---\nsearch:\n  exclude: true\n---\n\n{shown_file(path)}"
    for place, text in generated.items():
        # Files are found by the links to them alone.
        level = InclusionLevel.NOT_IN_NAV if place.startswith(FILES) else InclusionLevel.UNDEFINED
        files.append(File.generated(config, place, content=text, inclusion=level))
    files.append(File.generated(config, "javascripts/mermaid.min.js", abs_src_path=str(ROOT / MERMAID)))
    return files


def on_page_markdown(markdown: str, page: Page, **others: Any) -> str:
    """A page with its links as the site has them."""
    places = pages()
    path = {place: path for path, place in places.items()}.get(page.file.src_uri)
    return for_site(path, markdown, places) if path else markdown
