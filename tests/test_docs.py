"""The documentation: its examples run, its commands and links exist, nothing is left out."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest
import torch
import typer
from safetensors.torch import load_file

import pseudocoresets as pc
from pseudocoresets._cli.app import build_app
from pseudocoresets.construction.loop import run_construction
from pseudocoresets.construction.settings import ConstructionSettings
from pseudocoresets.core.registry import Registry
from pseudocoresets.data import DATASETS
from pseudocoresets.data.corruptions import CORRUPTIONS
from pseudocoresets.kernels import KERNELS, SCHEDULES
from pseudocoresets.methods import METHODS, GradientMethod, Solver
from pseudocoresets.methods.selection import SELECTIONS
from pseudocoresets.models.networks import NETWORKS
from pseudocoresets.privacy.report import attack_rows

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])
WITHOUT_FORMULAS = ("dsa", "cafe-dsa", "gaussian-psvi", "uniform")
"""Methods that say in words what they do otherwise than another."""
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL_LANGUAGES = ("", "bash", "console", "sh", "shell")
REGISTRIES: tuple[Registry[Any], ...] = (METHODS, KERNELS, NETWORKS, DATASETS)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def python_blocks(page: Path) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text()) if language == "python"]


def shell_lines(page: Path) -> Iterator[str]:
    """Lines of unnamed and shell blocks, fenced or indented, that call ``bpc``; continued lines are joined."""
    text = page.read_text()
    bodies = [body for language, body in FENCE.findall(text) if language in SHELL_LANGUAGES]
    bodies += re.findall(r"^ {4}(\S.*)$", FENCE.sub("", text), re.MULTILINE)
    for body in bodies:
        for line in body.replace("\\\n", " ").splitlines():
            plain = line.strip().removeprefix("$ ")
            if plain.startswith("bpc "):
                yield plain


def mentions(page: Path) -> Iterator[str]:
    """Commands and parts of commands in running text: `bpc construct`, `bpc run --json`."""
    for line in FENCE.sub("", page.read_text()).splitlines():
        if not line.startswith("    "):
            yield from re.findall(r"`(bpc(?: [^`]+)?)`", line)


def walk(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and what is left of them; a word in capitals stands for any command."""
    command: Any = typer.main.get_command(build_app())
    while words and hasattr(command, "commands") and not words[0].isupper():
        if words[0].startswith("-"):
            options = known_options(command)
            assert words[0] in options, f"{words[0]} is not an option before a command: {sorted(options)}"
            words = words[2:]
            continue
        assert words[0] in command.commands, f"there is no command '{words[0]}': {sorted(command.commands)}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def known_options(command: Any) -> set[str]:
    return {"--help"} | {name for entry in command.params for name in (*entry.opts, *entry.secondary_opts)}


def parse(line: str) -> None:
    """The command line is parsed as a whole: options, their values, what is required."""
    command, words = walk(shlex.split(line, comments=True)[1:])
    if not hasattr(command, "commands"):
        command.make_context("bpc", list(words))


@pytest.fixture
def registries_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


def run_page(page: str) -> dict[str, Any]:
    """What a page defines, run from top to bottom."""
    names: dict[str, Any] = {}
    for block in python_blocks(DOCS / page):
        exec(compile(block, f"docs/{page}", "exec"), names)
    return names


@pytest.fixture
def extended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registries_as_they_were: None) -> dict[str, Any]:
    """The page on extending, run in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return run_page("extending.md")


def test_the_walk_with_own_data_network_and_model_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page("own-data.md")
    data, report, coreset = names["data"], names["report"], names["coreset"]
    assert (data.shape, data.train.labels.bincount().tolist()) == ((2, 8, 8), [480, 320, 160])
    assert len(coreset) == 3
    assert report.gain["accuracy"] == pytest.approx(report.accuracy.mean - report.control.accuracy.mean)
    assert report.accuracy.mean > 0.6
    assert report.gain["accuracy"] > 0.05
    assert len(pc.load_experts("experts/", network=names["MyNet"]())) == 5
    assert len(names["small"]) == 20
    assert names["small"].x.shape == (20, 2)
    assert names["distance"].kl_full_coreset < 0.5


def test_the_walk_is_short_and_imports_nothing_else() -> None:
    (walk,) = (block for block in python_blocks(DOCS / "own-data.md") if "from_torch(" in block)
    lines = [line for line in walk.splitlines() if line.strip()]
    assert len(lines) <= 10
    assert [line for line in lines if "import" in line] == ["import pseudocoresets as pc"]


def test_the_parts_that_the_page_on_extending_adds_work(extended: dict[str, Any]) -> None:
    method, data, experts = extended["FisherDivergence"](), extended["data"], extended["experts"]
    assert METHODS["fisher"] is extended["FisherDivergence"]
    assert torch.equal(extended["coreset"].images, extended["same"].images)
    settings = ConstructionSettings(ipc=1, iterations=100, learning_rate=10.0)
    made = run_construction(data, experts, "fisher", method, settings, device="cpu")
    accuracy = [
        pc.evaluate(
            pc.sample_posterior(coreset, steps=200, step_size=0.2, temperature=0.1, device="cpu"), data.test
        ).accuracy.mean
        for coreset in (made.initial, made.coreset)
    ]
    assert accuracy[1] > accuracy[0] + 0.1

    # 200 independent chains: a mean has the error sqrt(1 / 200), a variance sqrt(2 / 200); four of them.
    ends = extended["chain"].kept[-1]
    assert ends.mean(0).abs().max() < 4 * (1 / 200) ** 0.5
    assert (ends.var(0) - 1).abs().max() < 4 * (2 / 200) ** 0.5
    assert 0.1 < float(extended["chain"].acceptance.mean()) < 0.4

    assert extended["scores"].shape == (3, 497, 10)
    assert pc.load_dataset("even-digits").classes == extended["evens"].classes == ("0", "2", "4", "6", "8")


def test_the_method_example_is_short() -> None:
    (block,) = (block for block in python_blocks(DOCS / "extending.md") if "METHODS.add" in block)
    body = block[block.index("@dataclass") :]
    assert len([line for line in body.splitlines() if line.strip()]) <= 22


def test_the_readme_shows_how_to_use_a_coreset(coreset_file: Path, digits: pc.Dataset) -> None:
    (block,) = (block for block in python_blocks(ROOT / "README.md") if "DataLoader" in block)
    names: dict[str, Any] = {"images": digits.test.images}
    exec(block.replace("runs/demo/coreset.safetensors", str(coreset_file)), names)
    images, labels = next(iter(names["loader"]))
    assert images.shape == (10, 1, 8, 8)
    assert sorted(labels.tolist()) == list(range(10))
    assert torch.equal(names["inputs"], digits.transform(digits.test.images))


def test_plain_pytorch_on_a_coreset_as_the_quick_start_shows(coreset_file: Path, digits: pc.Dataset) -> None:
    (block,) = (block for block in python_blocks(DOCS / "quickstart.md") if "optimiser" in block)
    names: dict[str, Any] = {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        exec(block.replace("digits.safetensors", str(coreset_file)), names)
    assert float((names["predicted"] == digits.test.labels).float().mean()) > 0.5


def test_a_coreset_file_opens_without_the_library(coreset_file: Path, coreset: pc.Coreset) -> None:
    (block,) = (block for block in python_blocks(DOCS / "files.md") if "safe_open" in block)
    names: dict[str, Any] = {}
    exec(block.replace('"coreset.safetensors"', repr(str(coreset_file))), names)
    torch.testing.assert_close(names["pixels"], coreset.to_pixels())
    page = (DOCS / "files.md").read_text()
    tensors = load_file(coreset_file)
    assert [key for key in (*names["document"], *tensors) if f"`{key}`" not in page] == []


@each_page
def test_every_python_block_compiles(page: Path) -> None:
    for block in python_blocks(page):
        compile(block, str(page), "exec")


@each_page
def test_every_command_line_can_be_parsed(page: Path) -> None:
    for line in shell_lines(page):
        try:
            parse(line)
        except Exception as error:
            pytest.fail(f"{page.name}: '{line}': {getattr(error, 'message', error)}")


@each_page
def test_every_command_in_the_text_exists(page: Path) -> None:
    for mention in mentions(page):
        command, words = walk(mention.split()[1:])
        unknown = {word.partition("=")[0] for word in words if word.startswith("--")} - known_options(command)
        assert not unknown, f"{page.name}: '{mention}' has unknown options {unknown}"


def test_the_checks_above_find_mistakes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`bpc construkt` and `bpc run --ipcs 1`\n\n    bpc show\n    $ bpc run --ipc one\n")
    first, second = mentions(page)
    with pytest.raises(AssertionError, match="no command 'construkt'"):
        walk(first.split()[1:])
    assert "--ipcs" not in known_options(walk(second.split()[1:])[0])
    lines = list(shell_lines(page))
    assert lines == ["bpc show", "bpc run --ipc one"]
    for line, complaint in zip(lines, ("coreset_file", "valid integer"), strict=True):
        with pytest.raises(Exception, match=complaint):
            parse(line)


def test_the_readme_lists_every_command() -> None:
    commands = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]
    text = (ROOT / "README.md").read_text()
    assert [name for name in commands if f"| `bpc {name}` |" not in text] == []


def is_solver(method: Any) -> bool:
    return isinstance(method, type) and issubclass(method, Solver)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("methods.md", [*METHODS, *SELECTIONS]),
        ("samplers.md", [*KERNELS, *SCHEDULES]),
        ("networks.md", NETWORKS),
        ("datasets.md", DATASETS),
        ("corruptions.md", CORRUPTIONS),
        ("posteriors.md", [name for name, method in METHODS.items() if is_solver(method)]),
    ],
)
def test_every_registered_part_is_on_its_page(page: str, names: Iterable[str]) -> None:
    text = (DOCS / page).read_text()
    assert [name for name in names if f"`{name}`" not in text] == []


def is_made_with_the_site(path: Path) -> bool:
    """Pages of tools/site.py: of notebooks, of methods, the gallery and the plots."""
    if path.parent == DOCS / "methods":
        return path.stem in {*METHODS, *SELECTIONS}
    return path in (DOCS / "gallery.md", DOCS / "benchmarks.md") or path.with_suffix(".ipynb").exists()


@each_page
def test_links_within_the_repository_resolve(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if is_made_with_the_site(linked):
            continue
        assert linked.exists(), f"{page.name} links to '{target}', which does not exist"
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to '{target}'; headings: {sorted(anchors(linked))}"


def anchors(page: Path) -> set[str]:
    """Heading anchors as MkDocs and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def mathematics() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mathematics", ROOT / "tools" / "mathematics.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mathematics"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("written", "typeset"),
    [
        (
            "theta_{t+1} = theta_t - eta grad_theta U(theta_t; A_t x)",
            r"\theta_{t+1}=\theta_{t}-\eta\nabla_{\theta}U(\theta_{t};A_{t}x)",
        ),
        ("KL(pi || pi_x)", r"\mathrm{KL}(\pi\,\|\,\pi_{x})"),
        ("|| theta_k - theta* ||^2 / n", r"\frac{\left\|\theta_{k}-\theta^{*}\right\|^{2}}{n}"),
        ("(1 / (2 T)) Var_s[ e - r ]", r"\frac{1}{2T}\,\mathrm{Var}_{s}[e-r]"),
        ("sum_{i in B_c} f(x_i) / sum_j a_j", r"\sum_{i\inB_{c}}f(x_{i})/\sum_{j}a_{j}"),
        ("E_sg(pi_x)[ theta-_j ]", r"E_{\mathrm{sg}(\pi_{x})}[\theta_{j}^{-}]"),
        ("W A (x) G + H^-1/2", r"WA\otimesG+H^{-1/2}"),
        ("< f - f_w, f_i >", r"\langlef-f_{w},f_{i}\rangle"),
        ("p(y | x~) ~= 1e-6", r"p(y\mid\tilde{x})\approx10^{-6}"),
        ("w <- max(0, w - d m / sqrt(t v))", r"w\leftarrow\max(0,w-d\frac{m}{\sqrt{tv}})"),
    ],
)
def test_the_mathematics_of_docstrings_becomes_that_of_pages(written: str, typeset: str) -> None:
    found = re.sub(r"\\left(?=[(\[])|\\right(?=[)\]])", "", mathematics().formula(written).replace(" ", ""))
    assert found == typeset


def test_words_of_a_sentence_stay_words() -> None:
    sentence = "A chain of k = ``steps`` steps, a Gaussian of G's: N(0, I) at sigma = 0.01 (see ``psvi``)."
    expected = (
        "A chain of $`k =`$ `steps` steps, a Gaussian of $`G`$'s: $`N ( 0 , I )`$ at $`\\sigma = 0.01`$ (see `psvi`)."
    )
    assert mathematics().prose(sentence) == expected


@pytest.mark.parametrize("name", [*METHODS, *SELECTIONS])
def test_every_page_of_a_method_has_its_formulas(name: str) -> None:
    """Each is read as one: nothing of the plain notation is left, and brackets match."""
    build = METHODS[name] if name in METHODS else type(SELECTIONS[name])
    texts = [inspect.getdoc(build) or ""]
    if issubclass(build, GradientMethod):
        texts.append(inspect.getdoc(inspect.getmodule(build)) or "")
    page = "\n".join(map(mathematics().markdown, texts))
    formulas = re.findall(r"```math\n(.*?)\n```", page, re.DOTALL) + re.findall(r"\$`([^`]+)`\$", page)
    if issubclass(build, GradientMethod | Solver) and name not in WITHOUT_FORMULAS:
        assert "```math" in page
    for each in formulas:
        symbols = re.sub(r"\\(text|texttt|mathrm|begin|end)\{[^}]*\}", "", each)
        words = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{3,}", symbols)
        assert words == [] and not re.search(r"~|<-|\|\||\.\.", symbols), each
        assert each.count("{") == each.count("}") and each.count(r"\left") == each.count(r"\right") + each.count(
            r"\leftarrow"
        )


def test_every_page_is_in_the_navigation() -> None:
    navigation = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert pages - set(navigation) == set()


def test_every_dependency_is_justified() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in project["project"]["optional-dependencies"].values():
        wanted += extra
    page = (DOCS / "dependencies.md").read_text()
    names = [re.split(r"[\[<>=!~; ]", requirement)[0] for requirement in wanted]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_api_page_has_every_public_name() -> None:
    page = (DOCS / "api.md").read_text()
    modules = {name for name in pc.__all__ if isinstance(getattr(pc, name), ModuleType)}
    errors = {name for name in pc.__all__ if name.endswith("Error")}
    assert "::: pseudocoresets.core.errors" in page
    assert [name for name in modules if f"`pc.{name}`" not in page] == []
    assert [name for name in set(pc.__all__) - errors - modules if f"::: pseudocoresets.{name}\n" not in page] == []


def test_the_page_of_results_says_what_the_records_say() -> None:
    path = ROOT / "benchmarks" / "tables.py"
    spec = importlib.util.spec_from_file_location("tables", path)
    assert spec is not None
    assert spec.loader is not None
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    assert tables.page() == (DOCS / "results.md").read_text(encoding="utf-8")


RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("dataset", "title"), [("mnist", "MNIST"), ("fashion-mnist", "Fashion-MNIST"), ("cifar10", "CIFAR-10")]
)
def test_the_page_on_privacy_has_the_recorded_accuracies(dataset: str, title: str) -> None:
    """Of the ways that were tried, the one that held-out data chose; ahead of NDPDC, as the page says."""
    records = [json.loads((RESULTS / f"{name}.json").read_text()) for name in ("private", "private_cifar10")]
    rows = [row for record in records for row in record["rows"] if row["dataset"] == dataset]
    published = records[-1]["published"][dataset]
    table = (DOCS / "privacy.md").read_text().split(f"\n{title}:\n")[1]
    for size, ipc in enumerate((10, 50)):
        line = re.search(rf"^\| {ipc} \|(.*)\|$", table, re.MULTILINE)
        assert line is not None
        cells = [float(cell.strip(" *")) for cell in line[1].split("|")]
        for cell, epsilon in zip(cells, (1.0, 10.0), strict=False):
            tried = [row["accuracy"] for row in rows if (row["epsilon"], row["ipc"]) == (epsilon, ipc)]
            best = max(tried, key=lambda accuracy: mean(accuracy["held out"]))
            assert cell == round(mean(best["test"]), 1) > published["NDPDC"][size]
        rivals = ("NDPDC", "Dosser with auxiliary images", "DP-MERF")
        assert cells[2:5] == [published[name][size] for name in rivals if name in published]


@pytest.mark.parametrize("record", sorted(RESULTS.glob("privacy_audit_*.json")), ids=lambda path: path.stem)
def test_the_page_on_privacy_has_the_recorded_attacks(record: Path) -> None:
    page = (DOCS / "privacy.md").read_text()
    for document in json.loads(record.read_text())["rows"]:
        for _, _, attack, auc, *_, power in (row for row in attack_rows(document) if row[0] == "this coreset"):
            if attack.startswith("LiRA"):
                assert auc in page
                assert attack == "LiRA" or power in page
                if document["dataset"] != "digits" and document["guarantee"] is not None:
                    assert float(auc.split()[0]) <= 0.52
