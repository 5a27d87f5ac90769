"""From a template and what it shows to a page that needs nothing else."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from markupsafe import Markup

from pseudocoresets.coreset import library_versions


def rendered(template: str, **content: Any) -> str:
    """The page as text: what is inserted is escaped, and a missing name is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style, version = Markup(_resource("page.css")), library_versions()["pseudocoresets"]
    return environment.get_template(template).render(style=style, version=version, **content)


def _resource(name: str) -> str:
    return files("pseudocoresets._report").joinpath(name).read_text(encoding="utf-8")
