"""What MkDocs does not do by itself: mathematics, notebooks, a page for each method and the gallery.

Mathematics is written as on GitHub (a fence named ``math``, or ``$`...`$`` in a line) and becomes MathML, which
browsers typeset without a script. On the page of a method it comes from the docstring (``tools/mathematics.py``).
Pages that can be made from the code are made when the site is built.
"""

from __future__ import annotations

import html
import inspect
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from pseudocoresets.methods import METHODS, SOLVERS, GradientMethod
from pseudocoresets.methods.selection import SELECTIONS

sys.path.insert(0, str(Path(__file__).parent))
import mathematics

BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IN_LINE = re.compile(r"\$`([^`]+)`\$")
CAFE = (
    r"\sum_l \lambda_l \sum_c \left\| m_l[c] - M_l[c] \right\|^2"
    r" - \mu \sum_c \sum_{i \in B_c} \log \mathrm{softmax}_k \left( \langle z(x_i), m[k] \rangle \right)[c]"
)
OBJECTIVES = {
    "cd": r"\mathrm{KL}(q\,\|\,\pi_{\tilde x}) - \mathrm{KL}(\Pi^k q\,\|\,\pi_{\tilde x})",
    "pcd": r"\mathrm{KL}(\pi\,\|\,\pi_{\tilde x})",
    "fkl": r"\mathrm{KL}(\pi\,\|\,\pi_{\tilde x})",
    "fkl-hmc": r"\mathrm{KL}(\pi\,\|\,\pi_{\tilde x})",
    "fkl-kfl": r"\mathrm{KL}(\pi\,\|\,\pi_{\tilde x})",
    "rkl": r"\mathrm{KL}(\pi_{\tilde x}\,\|\,\pi)",
    "psvi": r"\min_{\tilde x, w}\ \mathrm{KL}(\pi_{\tilde x, w}\,\|\,\pi)",
    "black-box-vi": r"\min_{\tilde x, w}\ \mathrm{KL}(\pi_{\tilde x, w}\,\|\,\pi)",
    "wasserstein": r"\frac{\| \theta_k(\tilde x) - \theta_{s+e} \|^2}{\| \theta_s - \theta_{s+e} \|^2}",
    "mtt": r"\frac{\| \theta_k(\tilde x) - \theta_{s+e} \|^2}{\| \theta_s - \theta_{s+e} \|^2}",
    "bptt": r"\mathbb{E}\left[ E(x, \theta_W(\tilde x)) \right]",
    "dm": r"\sum_c \left\| \mathrm{mean}\,\psi(A x_c) - \mathrm{mean}\,\psi(A \tilde x_c) \right\|^2",
    "gm": r"\sum_c \sum_{\mathrm{layers}} \left( 1 - \cos(\nabla_\theta E(x_c), \nabla_\theta E(\tilde x_c)) \right)",
    "dsa": r"\sum_c \sum_{\mathrm{layers}} ( 1 - \cos(\nabla_\theta E(A x_c), \nabla_\theta E(A \tilde x_c)) )",
    "kip": r"\frac12 \| y - \Theta(x, \tilde x) (\Theta(\tilde x, \tilde x) + \lambda I)^{-1} \tilde y \|^2",
    "giga": r"\max_{w \ge 0}\ \frac{\langle f_w, f \rangle}{\| f_w \|\,\| f \|}",
    "frank-wolfe": r"\min_{w \ge 0}\ \left\| f - f_w \right\|^2",
    "sparse-vi": r"\min_{w \ge 0}\ \mathrm{KL}(\pi_w\,\|\,\pi)",
    "quasi-newton": r"\min_{w \ge 0}\ \mathrm{KL}(\pi_w\,\|\,\pi)",
    "coreset-mcmc": r"\min_{w \ge 0}\ \mathrm{KL}(\pi_w\,\|\,\pi)",
    "coreset-mcmc-free": r"\min_{w \ge 0}\ \mathrm{KL}(\pi_w\,\|\,\pi)",
    "hamiltonian-flow": r"\min_{w \ge 0}\ \mathrm{KL}(q_w\,\|\,\pi)",
    "a-iht": r"\min_{w \ge 0,\ \|w\|_0 \le m}\ \left\| f - f_w \right\|^2",
    "moments": r"\min_u\ \mathrm{KL}(q\,\|\,\pi_u)",
    "gaussian-rkl": r"\min_u\ \mathrm{KL}(\pi_u\,\|\,\pi)",
    "gaussian-psvi": r"\min_{u, w}\ \mathrm{KL}(\pi_{u, w}\,\|\,\pi)",
    "laplace-w2": r"\min_u\ W_2^2\left(q,\ N(\theta(u), H(u)^{-1})\right) / \mathrm{tr}\,\mathrm{Cov}\,q",
    "cd-wasserstein": r"E(\tilde x, \theta_{s+e}) - E(\tilde x, \theta_k)"
    r" + \lambda \frac{\| \theta_k(\tilde x) - \theta_{s+e} \|^2}{\| \theta_s - \theta_{s+e} \|^2}",
    "dd": r"\mathbb{E}\left[ E(x, \theta_T(\tilde x, \eta)) \right]",
    "ld": r"\mathbb{E}\left[ E(x, \theta_W(\tilde y)) \right]",
    "cafe": CAFE,
    "cafe-dsa": CAFE,
    "herding": r"i_t = \mathrm{arg\,min}_i \left\| \mu - \frac1t \left( z_i + \sum_{s<t} z_{i_s} \right) \right\|",
    "k-center": r"i_t = \mathrm{arg\,max}_i \min_{s<t} \left\| z_i - z_{i_s} \right\|",
    "forgetting": r"f(i) = \# \left\{ e < E : c_e(i) \wedge \neg c_{e+1}(i) \right\}",
    "random": r"P(i) = 1 / n_c",
    "uniform": r"w_i = c_i\, n / m, \quad (c_i) \sim \mathrm{Multinomial}(m, 1/n)",
}
"""The objective or rule of each of our methods as one formula; its algorithm is in its docstring."""
DIGITS_SHOWN = (
    "The ten digits, one per class",
    "Ten digits, one per class, by sixty iterations of this method with the preset `quick`.",
)
ROWS_SHOWN = (
    "A coreset of a logistic regression and its posterior",
    "A logistic regression without an intercept: the data (grey; circles are 0, triangles 1) and the coreset (orange, "
    "larger for larger weights), and the lines around 50 and 95 % of the full posterior (blue) and of the coreset's. "
    "This is what the method itself gives, without the check that would replace it by something better.",
)
"""What the picture of a method shows, in short and in full."""
THIN = '<mspace width="0.167em" />'
GREY, COLOURS = "#7a8594", ("#b9c0ca", "#e0883a", "#8fb5e8", "#3a7bd5")
NAMES = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST", "svhn": "SVHN", "cifar10": "CIFAR-10", "digits": "digits"}


def on_files(files: Files, config: Any) -> Files:
    """Notebooks become pages, and generated pages join the others."""
    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        files.remove(file)
        text = from_notebook(json.loads(Path(file.abs_src_path or "").read_text(encoding="utf-8")))
        files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=text))
    pictures = {each.src_uri for each in files if each.src_uri.startswith("images/")}
    for name, build in methods().items():
        files.append(File.generated(config, f"methods/{name}.md", content=method_page(name, build, pictures)))
    root = Path(config.config_file_path).parent
    files.append(File.generated(config, "benchmarks.md", content=benchmarks_page(root)))
    files.append(File.generated(config, "gallery.md", content=gallery_page(pictures)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Formulas leave the text, so that Markdown does not read them, and come back as MathML in the page."""
    page.meta["formulas"] = formulas = []

    def keep(match: re.Match[str], display: str) -> str:
        formulas.append(typeset(match[1].strip(), display))
        return f"FORMULA{len(formulas) - 1}END" if display == "inline" else f"\n\nFORMULA{len(formulas) - 1}END\n\n"

    markdown = BLOCK.sub(lambda match: keep(match, "block"), markdown)
    return IN_LINE.sub(lambda match: keep(match, "inline"), markdown)


def typeset(latex: str, display: str) -> str:
    """MathML, with what the converter leaves out: ``arg min``, the relation of a law, thin spaces after functions."""
    latex = re.sub(r"\\arg\\(min|max)", r"\\mathrm{arg\\,\1}", latex)
    found = convert(latex, display=display)
    if "\\" in found:
        raise PluginError(f"The formula {latex} has a command that cannot be converted.")
    found = found.replace("<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>")
    return re.sub(r"(<mi>(?:log|exp|cos)</mi>)(?=<m(?:i|sub|sup|subsup|frac|row)>)", rf"\1{THIN}", found)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    return re.sub(r"FORMULA(\d+)END", lambda match: page.meta["formulas"][int(match[1])], content)


def methods() -> dict[str, Any]:
    return {**{name: METHODS[name] for name in METHODS}, **{name: type(SELECTIONS[name]) for name in SELECTIONS}}


def method_page(name: str, build: Any, pictures: set[str]) -> str:
    """Objective, algorithm, options and picture of one method, from its code."""
    by_gradient = inspect.isclass(build) and issubclass(build, GradientMethod)
    module = inspect.getmodule(build)
    texts = [inspect.getdoc(module) if by_gradient and module else None, inspect.getdoc(build)]
    parts = [f"# `{name}`", ""]
    if name in OBJECTIVES:
        parts += ["```math", OBJECTIVES[name], "```", ""]
    figure = f"images/gallery/{name}.png"
    if figure in pictures:
        shown, words = ROWS_SHOWN if build in SOLVERS else DIGITS_SHOWN
        parts += [f'![{shown}, by {name}](../{figure}){{ width="{600 if build in SOLVERS else 400}" }}', "", words, ""]
    parts += ["## Objective and algorithm", ""]
    parts += [mathematics.markdown(text) for text in dict.fromkeys(texts) if text]
    parts += ["", "## Options", "", "| option | default |", "|---|---|"]
    accepted = inspect.signature(build).parameters.values() if name in METHODS else ()
    rows = [f"| `{each.name}` | {option(each.default)} |" for each in accepted]
    parts += rows or ["| none | |"]
    parts += [
        "",
        "[Methods](../methods.md) compares all of them; [the references](../concepts.md#references) name the papers.",
    ]
    return "\n".join(parts) + "\n"


def option(default: Any) -> str:
    plain = default is None or isinstance(default, bool | int | float | str)
    return f"`{default}`" if plain else f"`{type(default).__name__}`"


def gallery_page(pictures: set[str]) -> str:
    """Every picture of a coreset, by data set and by method."""
    parts = ["# Gallery", "", "Coresets as they are: synthetic images in true pixel space, one row per class.", ""]
    found = sorted(each for each in pictures if re.fullmatch(r"images/[\w-]+-ipc\d+-\w+\.png", each))
    for data, title in NAMES.items():
        own = [each for each in found if each.startswith(f"images/{data}-ipc")]
        own.sort(key=lambda each: int(re.findall(r"ipc(\d+)", each)[0]))
        parts += [f"## {title}", ""] if own else []
        for each in own:
            ipc, method = re.findall(r"ipc(\d+)-(\w+)\.png", each)[0]
            words = f"{title}, {ipc} image{'' if ipc == '1' else 's'} per class, by {method}"
            parts += [
                f"**{ipc} per class, by [{method}](methods/{method}.md)**",
                "",
                f"![{words}]({each}){{ loading=lazy }}",
                "",
            ]
    parts += ["## The same ten digits by every method", ""]
    parts += ["One image per class, sixty iterations with the preset `quick`; not the best that each can do.", ""]
    own = {Path(each).stem: each for each in sorted(pictures) if each.startswith("images/gallery/")}
    of_rows = [each.name for each in SOLVERS if each.name in own]
    parts += [line for name in own if name not in of_rows for line in linked_picture(name, own[name], 300)]
    parts += ["## The same logistic regression by every method for rows", "", ROWS_SHOWN[1], ""]
    parts += [line for name in of_rows for line in linked_picture(name, own[name], 600)]
    return "\n".join(parts) + "\n"


def linked_picture(name: str, picture: str, width: int) -> list[str]:
    shown = f'![A coreset by {name}]({picture}){{ width="{width}" loading=lazy }}'
    return [f"**[{name}](methods/{name}.md)**", "", shown, ""]


def benchmarks_page(root: Path) -> str:
    """Accuracy and speed as plots, from the pages and records that hold the figures."""
    rows = re.findall(
        r"^\| ([\w-]+) \| (\d+) \| ([\d.]+) ± [^|]+\| ([\d.]+) ± [^|]+\|[^|]+\|[^|]+\| ([\d.]+) \| ([\d.]+) \|",
        (root / "docs/results.md").read_text(encoding="utf-8").split("### Summary")[1].split("###")[0],
        re.MULTILINE,
    )
    labels = [f"{NAMES.get(data, data)}, {ipc}" for data, ipc, *_ in rows]
    series = {
        "random real images, five chains averaged": [float(row[4]) for row in rows],
        "paper, one run": [float(row[5]) for row in rows],
        "this library, one chain": [float(row[2]) for row in rows],
        "this library, five chains averaged": [float(row[3]) for row in rows],
    }
    accuracy = bars(labels, series, "test accuracy in %")
    records = json.loads((root / "benchmarks/results/bench_h200.json").read_text(encoding="utf-8"))["rows"]
    timed = [row for row in records if row.get("reference") and row["unit"] == "ms"]
    speed = bars(
        [row["what"] for row in timed],
        {"plain PyTorch loop": [row["reference"] for row in timed], "this library": [row["ours"] for row in timed]},
        "ms per iteration",
    )
    return f"""# Benchmarks

## Accuracy

Chains of a ConvNet from a fresh start, on test data that nothing was chosen by. The number after a data
set is that of images per class. [Results](results.md) has every figure, its spread and how it was made.

{accuracy}

## Speed

One iteration of contrastive divergence with 100 chain steps on an H200, beside the published algorithm as a plain
PyTorch loop. [Speed](speed.md) says how.

{speed}
"""


def bars(labels: list[str], series: dict[str, list[float]], axis: str) -> str:
    """Groups of horizontal bars as inline SVG, readable on light and dark ground."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure((8, 0.6 + 0.22 * len(labels) * len(series)), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    for number, (name, values) in enumerate(series.items()):
        places = [len(series) * 1.3 * row + number for row in range(len(labels))]
        colours = COLOURS if len(series) == len(COLOURS) else (COLOURS[1], COLOURS[-1])
        drawn = axes.barh(places, values, 0.9, label=name, color=colours[number])
        axes.bar_label(drawn, fmt="%.1f", padding=3, fontsize=7, color=GREY)
    axes.set_yticks([len(series) * 1.3 * row + (len(series) - 1) / 2 for row in range(len(labels))], labels, color=GREY)
    axes.invert_yaxis()
    axes.set_xlabel(axis, color=GREY)
    axes.tick_params(colors=GREY, length=0)
    axes.spines[:].set_visible(False)
    figure.legend(frameon=False, labelcolor=GREY, fontsize=8, loc="outside upper left", ncols=2)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": axis}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    drawing = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    label = html.escape(f"{axis} of {', '.join(series)}")
    return f'<div class="plot" role="img" aria-label="{label}">{drawing}</div>'


def from_notebook(book: dict[str, Any]) -> str:
    """A notebook as Markdown: text, code, and what each cell shows."""
    parts = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        parts += [source, ""] if cell["cell_type"] == "markdown" else ["```python", source, "```", ""]
        for output in cell.get("outputs", []):
            parts += shown(output)
    return "\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> list[str]:
    data = output.get("data", {})
    if "text/html" in data:
        return [f'<div class="output">{"".join(data["text/html"])}</div>', ""]
    text = "".join(data.get("text/plain", output.get("text", "")))
    return [f'<div class="output"><pre>{html.escape(text)}</pre></div>', ""] if text else []
