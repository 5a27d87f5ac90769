"""The command ``bpc``: parse, call, print. A command's module is imported only when that command is asked for."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import os
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from pseudocoresets._cli.options import OUTPUT, ProgramSettings
from pseudocoresets._cli.process import ARRIVED, leaving_at_once, output_may_be_lost, prepare_streams, say, status_of
from pseudocoresets.core.errors import PassedOverWarning, PseudocoresetsError, RenamedWarning
from pseudocoresets.core.settings import require_precision
from pseudocoresets.core.text import printable, shortened

BAD_INPUT = 2
UNFORESEEN = 1
LONGEST_ARGUMENT = 4000
"""Characters; most systems take no longer path."""
SHOW_TRACEBACK: ContextVar[bool] = ContextVar("SHOW_TRACEBACK", default=False)
"""Whether ``--debug`` was said before the command."""
COMMANDS = {
    "run": "The whole job: experts, coreset, control, posterior, report.",
    "experts": "Train and store expert trajectories; those already in the folder are kept.",
    "construct": "One coreset by one method; killed and started again, it goes on from its last checkpoint.",
    "evaluate": "A coreset file under a protocol, beside its control of random real images.",
    "compare": "Several methods at one cell on shared experts, with the control and the gain over it.",
    "reproduce": "Every table and figure of the paper, ours beside the paper's.",
    "show": "Write a picture of a coreset: one row per class, its name at the side, in true pixel space.",
    "compact": "Write a coreset file without whitening matrices and with its images in float16.",
    "privacy": "What a coreset gives away of its data: neighbours, membership inference, start images.",
    "share": "Write a coreset with its card (what, how made, figures, licence, privacy) as one folder to publish.",
    "report": "Write the report of a run: one HTML file that needs nothing else.",
    "posterior": "Build coresets for a model whose posterior is known and measure their distance to it.",
    "export": "Write a coreset of rows as CSV, Parquet or Stan's JSON, with a program that fits it elsewhere.",
    "bench": "Speed and memory here, beside the reference formulation, in one run of under four minutes.",
    "methods": "Every construction method in one line, with its options and their defaults.",
    "doctor": "What this machine has: versions, device, memory, whether the fast path is taken, and data sets.",
    "data": "Data sets: which there are, what is in one, fetching one.",
}
"""What 'bpc --help' says of each command, known without importing any; each is the object of its name in the module of
its name."""


class LoadedCommands(Mapping[str, Any]):
    """The commands by their names; getting one imports it."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        with leaving_at_once():
            found = vars(importlib.import_module(f"pseudocoresets._cli.{name}"))[name]
        if isinstance(found, typer.Typer):
            return typer.main.get_command(_guarded_app(found))
        alone = typer.Typer(add_completion=False)
        alone.command(name, cls=PanelledCommand, help=_paragraphs(found))(guarded(found))
        return typer.main.get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class PanelledCommand(TyperCommand):
    """Shows ``--help`` in the group of output too, not in one of its own above all others."""

    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            vars(option)["rich_help_panel"] = OUTPUT
        return option


class LazyGroup(TyperGroup):
    """Lists commands by their one line, and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        vars(self)["commands"] = LoadedCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        wrong = next(filter(None, map(_wrong_argument, args)), None)
        if wrong is not None:
            raise _ended(wrong, BAD_INPUT)
        return super().parse_args(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else self.commands[name], rest


def _wrong_argument(text: str) -> str | None:
    """What no name or value of any command may be, in a sentence."""
    if not text or (text.startswith("--") and text.endswith("=")):
        return "A name or a value is empty; leave the option out for its default."
    shown = shortened(printable(text))
    if any(ord(letter) < 32 for letter in text):
        return f"'{shown}' has a line break or a control code; choose another."
    if len(text) > LONGEST_ARGUMENT:
        return f"'{shown}' is longer than the {LONGEST_ARGUMENT:,} characters that any name or value may have."
    return None


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn this library's errors into one sentence and status 2, and Ctrl-C into status 130."""

    @functools.wraps(command)
    def call(*values: Any, **options: Any) -> None:
        try:
            with renamed_names_in_one_line():
                command(*values, **options)
        except PseudocoresetsError as error:
            raise _ended(str(error), BAD_INPUT) from None
        except KeyboardInterrupt as interrupt:
            raise _interrupted(interrupt) from None
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except OSError as error:
            if error.filename is None:  # a standard stream
                raise
            about = shortened(printable(os.fsdecode(error.filename)))
            raise _ended(f"Cannot use '{about}': {error.strerror}.", BAD_INPUT) from None
        except Exception as error:
            arrived = ARRIVED.get()
            raise _ended(_unforeseen(error), UNFORESEEN) if arrived is None else _interrupted(arrived) from None

    return call


def _interrupted(interrupt: KeyboardInterrupt) -> typer.Exit:
    say("Interrupted. What was finished is kept; the same command goes on from there.")
    return typer.Exit(status_of(interrupt))


def _ended(sentence: str, status: int) -> typer.Exit:
    """One sentence, and with ``--debug`` where the error that is being handled comes from."""
    if SHOW_TRACEBACK.get():
        say(traceback.format_exc(), end="")
    say(f"Error: {sentence}")
    return typer.Exit(status)


def _unforeseen(error: Exception) -> str:
    """What is no mistake of the user: memory that ran out, or one of this library."""
    from pseudocoresets.core.devices import is_out_of_memory

    if is_out_of_memory(error):
        return (
            "There is too little memory; ask for fewer chains, images or a smaller network. What was finished is kept."
        )
    first = printable(next(iter(str(error).strip().splitlines()), ""))[:300]
    return (
        f"This should not have happened ({type(error).__name__}: {first}); 'bpc --debug' before the command shows "
        "where, for a report of the bug."
    )


@contextmanager
def renamed_names_in_one_line() -> Iterator[None]:
    """What warns of a name of the last version is one sentence on standard error."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, RenamedWarning | PassedOverWarning):
                say(f"Warning: {printable(str(message))}")
            else:
                others(message, category, *place)

        warnings.simplefilter("always", RenamedWarning)
        warnings.simplefilter("always", PassedOverWarning)
        vars(warnings)["showwarning"] = show
        yield


def build_app() -> typer.Typer:
    """Every command, guarded."""
    app = typer.Typer(
        name="bpc",
        help="Bayesian pseudo-coresets: construct them, sample their posterior, and say how good it is.",
        cls=LazyGroup,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(guarded(_settings))
    return app


def _paragraphs(command: Callable[..., Any]) -> str:
    """What help says of a command: its docstring, whose lines end where those of the terminal do."""
    return "\n\n".join(" ".join(each.split()) for each in (inspect.getdoc(command) or "").split("\n\n"))


def _guarded_app(group: typer.Typer) -> typer.Typer:
    """A copy of a group of commands with each of them guarded."""
    answer = copy.copy(group)
    answer.registered_commands = [copy.copy(entry) for entry in group.registered_commands]
    for entry in answer.registered_commands:
        if entry.callback is not None:
            entry.cls, entry.help = PanelledCommand, _paragraphs(entry.callback)
            entry.callback = guarded(entry.callback)
    return answer


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"bpc {metadata.version('pseudocoresets')}")
        raise typer.Exit


def _settings(
    context: typer.Context,
    precision: Annotated[
        str, typer.Option("--precision", help="auto (bfloat16 and CUDA graphs on a GPU) or float32 (the plain path).")
    ] = "auto",
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    require_precision(precision)
    context.obj = ProgramSettings(precision)
    SHOW_TRACEBACK.set(debug)


def main() -> None:
    prepare_streams()
    with output_may_be_lost():
        build_app()(prog_name="bpc")
