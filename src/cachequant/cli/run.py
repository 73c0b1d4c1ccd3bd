"""`cachequant run`: one compute notebook with parameters of one's own."""

from typing import Annotated, Any

import typer

from cachequant.cli import output

EXAMPLES = (
    "cachequant run 05_quality_grid -p max_tokens=4096 --to shorter",
    'cachequant run 05_quality_grid -p "max_tokens: 4096, window: 512" --profile smoke',
)


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example(*EXAMPLES))(run)


def run(
    notebook: Annotated[str, typer.Argument(help="Name or number: 05_quality_grid, 05.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter", "-p", help="NAME=VALUE or 'NAME: VALUE, NAME: VALUE', values in YAML; may be repeated."
        ),
    ] = None,
    to: Annotated[str, typer.Option(help="Name of the run: the folder below results/runs.")] = "latest",
    profile: Annotated[str, typer.Option(help="Whose parameters to start from: smoke, quick, full.")] = "quick",
    json: output.Json = False,
) -> None:
    """Run one compute notebook with other parameters.

    The result goes to results/runs/NAME. Unknown parameters are errors that list the known ones.
    """
    from cachequant.study import params, results, runner

    set_name = f"runs/{to}"
    with output.quiet(json):
        result = runner.run(notebook, set_name, profile, params.parse(parameter or []))
    found = {
        "notebook": result.name,
        "set": result.set,
        "file": str(results.path(result.name, result.set)),
        "parameters": result.parameters,
        "seconds": result.provenance["seconds"],
    }
    output.show(found, json, _print)


def _print(found: dict[str, Any]) -> None:
    typer.echo(f"{found['file']}: {found['seconds']:.1f} s; make html RESULTS={found['set']} renders it")
