"""What a notebook shows of an object: a line, a small table, a picture. Everything from outside is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup
from PIL import Image

from pseudocoresets._io.pictures import data_uri

MOST_ROWS = 8


def shown(title: str, *parts: Markup) -> str:
    """A title above the parts."""
    return str(Markup("<div><p><strong>{}</strong></p>{}</div>").format(title, Markup("").join(parts)))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left_out: int = 0) -> Markup:
    """Rows below column names; ``left_out`` more are only counted."""
    head = Markup("").join(Markup("<th>{}</th>").format(column) for column in columns)
    lines = [
        Markup("<tr>{}</tr>").format(Markup("").join(Markup("<td>{}</td>").format(cell) for cell in row))
        for row in rows
    ]
    body = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, Markup("").join(lines))
    return body + (Markup("<p>and {:,} more</p>").format(left_out) if left_out else Markup(""))


def facts(pairs: Sequence[tuple[str, str]]) -> Markup:
    """Names and values."""
    return table(("", ""), pairs)


def picture(image: Image.Image, description: str) -> Markup:
    style = "image-rendering: pixelated; max-width: 100%"
    return Markup('<img src="{}" alt="{}" style="{}">').format(data_uri(image), description, style)
