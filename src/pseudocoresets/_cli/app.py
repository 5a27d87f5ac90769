"""The command ``bpc``: parse, call, print."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from pseudocoresets._cli.bench import bench
from pseudocoresets._cli.compact import compact
from pseudocoresets._cli.compare import compare
from pseudocoresets._cli.construct import construct
from pseudocoresets._cli.data import data_app
from pseudocoresets._cli.evaluate import evaluate
from pseudocoresets._cli.experts import experts
from pseudocoresets._cli.options import ProgramSettings
from pseudocoresets._cli.posterior import posterior
from pseudocoresets._cli.report import report
from pseudocoresets._cli.run import run
from pseudocoresets._cli.show import show
from pseudocoresets.core.errors import PseudocoresetsError, RenamedWarning

BAD_INPUT = 2
INTERRUPTED = 130


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn this library's errors into one sentence and status 2, and Ctrl-C into status 130."""

    @functools.wraps(command)
    def call(*values: Any, **options: Any) -> None:
        try:
            with renamed_names_in_one_line():
                command(*values, **options)
        except PseudocoresetsError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            typer.echo("Interrupted. What was finished is kept; the same command goes on from there.", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return call


@contextmanager
def renamed_names_in_one_line() -> Iterator[None]:
    """What warns of a name of the last version is one sentence on standard error."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
            if issubclass(category, RenamedWarning):
                typer.echo(f"Warning: {message}", err=True)
            else:
                others(message, category, *place)

        warnings.simplefilter("always", RenamedWarning)
        vars(warnings)["showwarning"] = show
        yield


def build_app() -> typer.Typer:
    """Every command, guarded."""
    app = typer.Typer(
        name="bpc",
        help="Bayesian pseudo-coresets: construct them, sample their posterior, and say how good it is.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(guarded(_settings))
    for command in (run, experts, construct, evaluate, compare, show, compact, report, posterior, bench):
        app.command(command.__name__)(guarded(command))
    app.add_typer(_guarded_app(data_app), name="data")
    return app


def _guarded_app(group: typer.Typer) -> typer.Typer:
    """A copy of a group of commands with each of them guarded."""
    answer = copy.copy(group)
    answer.registered_commands = [copy.copy(entry) for entry in group.registered_commands]
    for entry in answer.registered_commands:
        if entry.callback is not None:
            entry.callback = guarded(entry.callback)
    return answer


def _settings(
    context: typer.Context,
    precision: Annotated[
        str, typer.Option("--precision", help="auto (bfloat16 and CUDA graphs on a GPU) or float32 (the plain path).")
    ] = "auto",
) -> None:
    context.obj = ProgramSettings(precision)


def main() -> None:
    build_app()(prog_name="bpc")
