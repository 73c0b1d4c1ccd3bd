"""The command line: `cachequant COMMAND`, each command in a module of its own.

Modules import what computes only inside their commands, so that `--help` answers at once. Bad input ends with one
message on stderr and exit code 2; a check or a run that fails, with exit code 1.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import cachequant
from cachequant.cli import (
    bench,
    bench_prefill,
    cache,
    calibrate,
    chat,
    doctor,
    export,
    generate,
    materialize,
    memory,
    output,
    perplexity,
    profile,
    quantize,
    run,
    session,
    tune,
    verify,
)
from cachequant.errors import CachequantError

app = typer.Typer(name="cachequant", rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
for module in (
    generate, chat, perplexity, bench, bench_prefill, profile, memory, calibrate, doctor, verify, materialize, quantize,
    export, cache, session, run, tune,
):  # fmt: skip
    module.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cachequant {cachequant.__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog=output.example('cachequant generate "The history of Paris" --scheme int8 --stream'),
)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """8-bit arithmetic and KV-cache reuse for small language models on an ordinary CPU."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs one command and exits."""
    sys.exit(call(arguments))


def call(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; expected errors become one message on stderr."""
    try:
        code = app(args=arguments, prog_name="cachequant", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        output.note(f"cachequant: {_usage(error)}")
        return 2
    except CachequantError as error:
        output.note(f"cachequant: {error}")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        output.note("cachequant: interrupted; what was finished is kept")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter complains when it flushes at exit
        return 1
    return code if isinstance(code, int) else 0


def _usage(error: typer.TyperException) -> str:
    """What was wrong with an option, the value that was given, and where the allowed ones are listed."""
    causes = getattr(error.__cause__, "errors", list)()  # of pydantic, which converts values
    given = f", not {causes[0]['input']!r}" if causes else ""
    context = getattr(error, "ctx", None)
    hint = f" (see '{context.command_path} --help')" if context else ""
    return f"{error.format_message().rstrip('.')}{given}{hint}"
