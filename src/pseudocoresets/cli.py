"""The command ``bpc``: parse, call, print."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pseudocoresets.accelerated import set_precision
from pseudocoresets.commands.bench import bench
from pseudocoresets.commands.compact import compact
from pseudocoresets.commands.compare import compare
from pseudocoresets.commands.construct import construct
from pseudocoresets.commands.data import data_app
from pseudocoresets.commands.evaluate import evaluate
from pseudocoresets.commands.experts import experts
from pseudocoresets.commands.posterior import posterior
from pseudocoresets.commands.report import report
from pseudocoresets.commands.run import run
from pseudocoresets.commands.show import show
from pseudocoresets.errors import PseudocoresetsError

BAD_INPUT = 2
INTERRUPTED = 130


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Turn this library's errors into one sentence and status 2, and Ctrl-C into status 130."""

    @functools.wraps(command)
    def call(*values: Any, **options: Any) -> None:
        try:
            command(*values, **options)
        except PseudocoresetsError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            typer.echo("Interrupted. What was finished is kept; the same command goes on from there.", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return call


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
    precision: Annotated[
        str, typer.Option("--precision", help="auto (bfloat16 and CUDA graphs on a GPU) or float32 (the plain path).")
    ] = "auto",
) -> None:
    set_precision(precision)


def main() -> None:
    build_app()(prog_name="bpc")
