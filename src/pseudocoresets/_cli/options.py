"""Options that mean the same in every command; those of the settings come from the settings' own types."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer.models import OptionInfo

from pseudocoresets.core.errors import InputError
from pseudocoresets.core.progress import for_stream
from pseudocoresets.core.settings import SEED, alternatives, type_hints

if TYPE_CHECKING:
    from pseudocoresets.core.mapping import Mapper
    from pseudocoresets.workflows.place import Workplace

DATA, METHOD, OUTPUT = "Data", "Method", "Output"
EXPERTS, CONSTRUCTION, SAMPLING, SHARED = "Experts", "Construction", "Sampling", "Several stages at once"
MACHINE, PRIVACY = "Machine", "Privacy"
PANELS = (DATA, METHOD, CONSTRUCTION, SAMPLING, EXPERTS, PRIVACY, SHARED, OUTPUT, MACHINE)
"""The groups that help shows options in, those that most people want first."""
PANEL_OF = {"experts": EXPERTS, "construction": CONSTRUCTION, "sampling": SAMPLING}
"""Where the settings of a part are shown."""


def option(panel: str, *names: str, help: str, **limits: Any) -> Any:
    """An option as help shows it, in its group; ``limits`` and what else it may have are those of ``typer.Option``."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **limits)


DatasetName = Annotated[str, option(DATA, "--dataset", help="Data set: a name ('bpc data list') or folder:PATH.")]
DataDir = Annotated[Path, option(DATA, "--data-dir", help="Folder that holds the data sets, or gets them.")]
NetworkName = Annotated[
    str, option(METHOD, "--network", help="Network and its options, such as convnet or convnet:depth=3,width=128.")
]
MethodName = Annotated[
    str | None,
    option(
        METHOD,
        "--method",
        help="Construction method ('bpc methods'), or 'random' for real images. Default: the preset's.",
    ),
]
Epsilon = Annotated[
    float | None,
    option(
        PRIVACY, "--epsilon", help="Differential privacy for each training example: the epsilon of the whole result."
    ),
]
Delta = Annotated[
    float | None,
    option(
        PRIVACY, "--delta", help="The delta that goes with --epsilon, below 1 / (training examples); 1e-5 unless given."
    ),
]
ImagesPerClass = Annotated[int, option(METHOD, "--ipc", help="Images per class.")]
ExpertsDir = Annotated[Path | None, option(EXPERTS, "--experts", help="Folder of expert trajectories.")]
ExpertCount = Annotated[int | None, option(EXPERTS, "--expert-count", help="Number of experts.", min=1, max=1_000_000)]
CoresetDataset = Annotated[str | None, option(DATA, "--dataset", help="Default: the one the coreset was made from.")]
CoresetNetwork = Annotated[str | None, option(METHOD, "--network", help="Default: the one the coreset was made with.")]
CoresetOrRun = Annotated[Path, typer.Argument(help="Coreset file, or a run folder.")]
SamplerName = Annotated[
    str | None,
    option(
        SAMPLING, "--sampler", help="Sampler of the posterior, or adam to train under 'point'; default: the preset's."
    ),
]
Protocol = Annotated[str, option(SAMPLING, "--protocol", help="cold, point or expert.")]
MethodOptions = Annotated[
    list[str] | None,
    option(METHOD, "--set", help="An option of the method, such as --set expert_epochs=0; repeatable."),
]
Calibration = Annotated[
    int | None,
    option(
        SAMPLING,
        "--calibration",
        help="Training images that choose how sure the average over all chains should be; 0 leaves it as it is. "
        "Default: the preset's.",
        min=0,
        max=10_000_000,
        show_default=False,
    ),
]
CheckpointSeconds = Annotated[
    float,
    option(
        CONSTRUCTION,
        "--checkpoint-seconds",
        help="Time between two checkpoints, from which a killed run goes on.",
        min=0,
        max=1e9,
    ),
]
Seed = Annotated[int, option(METHOD, "--seed", help="Seed of everything random.", min=SEED.low, max=SEED.high)]
Device = Annotated[str, option(MACHINE, "--device", help="auto, cpu or cuda.")]
Devices = Annotated[
    str,
    option(
        MACHINE,
        "--devices",
        "--device",
        help="Devices separated by commas, a process for each: cuda:0,cuda:1; auto is every GPU here, or the CPU.",
    ),
]
RayAddress = Annotated[
    str | None,
    option(
        MACHINE,
        "--ray",
        help="Use a Ray cluster with shared storage instead: HOST:PORT of its head; auto starts one here.",
    ),
]
PresetName = Annotated[
    str,
    option(
        METHOD,
        "--preset",
        help="Where settings not given here come from: quick, paper, best, published or a JSON file.",
    ),
]
Force = Annotated[bool, option(OUTPUT, "--force", help="Replace a finished result of another request.")]
AsJson = Annotated[bool, option(OUTPUT, "--json", help="Print one JSON document instead of a table.")]

Given = dict[str, Any]
"""By part, the settings that the user gave; the others stay with the preset."""


@dataclass(frozen=True)
class ProgramSettings:
    """What is said before the command: ``bpc --precision float32 run``."""

    precision: str = "auto"

    def place(self, device: str) -> Workplace:
        from pseudocoresets.workflows.place import workplace

        return workplace(device, self.precision, for_stream())


def place_of(context: typer.Context, device: str) -> Workplace:
    """Where a command works: on ``device``, as the program's settings have it."""
    return program_settings(context).place(device)


@contextmanager
def workforce_of(context: typer.Context, devices: str, ray: str | None) -> Iterator[tuple[Workplace, Mapper]]:
    """Where a command works itself, and who else works for it."""
    from pseudocoresets.workflows.cluster import workforce
    from pseudocoresets.workflows.parallel import devices_named

    names = devices_named(devices)
    with workforce(names, ray) as mapper:
        yield program_settings(context).place(names[0]), mapper


@contextmanager
def helped_place(context: typer.Context, devices: str) -> Iterator[Workplace]:
    """The first of the devices, with the others at its service within a step."""
    from pseudocoresets.workflows.parallel import devices_named

    with workforce_of(context, devices, None) as (place, mapper):
        yield replace(place, mapper=mapper, workers=len(devices_named(devices)))


def words(text: str) -> list[str]:
    """What is separated by commas."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    if text and not found:
        raise InputError(f"'{text}' names nothing; separate names by commas.")
    return found


def program_settings(context: typer.Context) -> ProgramSettings:
    return context.find_object(ProgramSettings) or ProgramSettings()


@dataclass
class SettingOption:
    """An option of the command, and the settings that it gives a value to."""

    names: tuple[str, ...]
    """As they are typed, such as ``--augment/--no-augment``."""
    kind: Any
    help: str
    wins: bool = False
    """Whether it is for one part alone, over what another option says of several."""
    settings: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of a part and the name of its setting."""

    @property
    def name(self) -> str:
        return _stem(self.names[0]).replace("-", "_")

    def parameter(self) -> inspect.Parameter:
        parts = [part for part, _ in self.settings]
        where = f" In {parts[0]} alone." if self.wins else f" In {', '.join(parts)}." if len(parts) > 1 else ""
        panel = PANEL_OF.get(parts[0], parts[0]) if len(parts) == 1 else SHARED
        default = typer.Option(None, *self.names, help=self.help + where, rich_help_panel=panel, show_default=False)
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, kind, default=default, annotation=self.kind | None)


def with_settings(**parts: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each setting of ``parts``, and the values to its parameter ``given``, by part.

    Settings that the command takes by a parameter of its own, such as a seed, are left to it.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True)
        options = sorted(_options(parts, set(own.parameters)), key=lambda option: option.wins)

        @functools.wraps(command)
        def call(**values: Any) -> None:
            given: Given = {part: {} for part in parts}
            for option in options:
                value = values.pop(option.name, None)
                for part, setting in option.settings if value is not None else ():
                    given[part][setting] = value
            command(**values, given=given)

        kept = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in own.parameters.values()
            if parameter.name != "given"
        ]
        parameters = [*kept, *(option.parameter() for option in options)]
        signature = own.replace(parameters=sorted(parameters, key=_panel_order))
        vars(call)["__signature__"] = signature
        call.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
        return call

    return decorate


def _panel_order(parameter: inspect.Parameter) -> int:
    """What is in no group, such as an argument, stands first."""
    described = [parameter.default, *get_args(parameter.annotation)]
    panels = [each.rich_help_panel for each in described if isinstance(each, OptionInfo)]
    return PANELS.index(panels[0]) if panels and panels[0] in PANELS else -1


def _options(parts: dict[str, type], taken: set[str]) -> list[SettingOption]:
    """One option for each name that settings go by; settings of the same name share it."""
    found: dict[str, SettingOption] = {}
    for part, settings in parts.items():
        hints = type_hints(settings)
        for entry in fields(settings):
            for option in _options_of(entry, hints[entry.name], alone=len(parts) == 1):
                if entry.name not in taken:
                    found.setdefault(option.name, option).settings.append((part, entry.name))
    return list(found.values())


def _options_of(entry: Field[Any], hint: Any, alone: bool) -> Iterator[SettingOption]:
    """The options of one setting: none if it takes objects only, its own name too in a command of one part."""
    kinds = [kind for kind in alternatives(hint) if kind in (bool, int, float, str)]
    if not kinds:
        return
    stem, help_text = entry.name.replace("_", "-"), entry.metadata.get("help", "")
    plain = f"--{stem}/--no-{stem}" if kinds[0] is bool else f"--{stem}"
    declared, own = entry.metadata.get("option") or plain, entry.metadata.get("own_option")
    names = (plain, declared) if alone and _stem(declared) != stem else (declared,)
    yield SettingOption(names, kinds[0], help_text)
    if own is not None and not alone:
        yield SettingOption((own,), kinds[0], help_text, wins=True)


def _stem(declaration: str) -> str:
    return declaration.split("/")[0].removeprefix("--")
