"""`python -m cachequant.study ...`: what the Makefile calls."""

import argparse
import os
import sys

from cachequant.errors import CachequantError


def main() -> int:
    """Runs one step of the study; 2 for bad input, 1 for a failed notebook."""
    parser = argparse.ArgumentParser(prog="python -m cachequant.study", description="Steps of the study.")
    steps = parser.add_subparsers(dest="step", required=True)
    for name, text in {
        "compute": "compute what is out of date",
        "report": "print durations against budgets",
        "run": "run one notebook with other parameters",
        "stage": "copy what the book shows to book/executed",
        "summary": "write every table of the book as text",
        "reproduce": "compare local results with the reference",
        "readme": "write the headline figures into README.md",
    }.items():
        step = steps.add_parser(name, help=text)
        if name in ("compute", "report", "run", "summary"):
            step.add_argument("--set", default="runs/latest" if name == "run" else "local")
        if name in ("compute", "report", "run"):
            step.add_argument("--profile", default="quick")
        if name == "compute":
            step.add_argument("notebooks", nargs="*")
        if name == "run":
            step.add_argument("notebook")
            step.add_argument("--parameters", action="append", default=[], metavar="'name: value, ...'")
    args = parser.parse_args()
    try:
        return _step(args)
    except CachequantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from what was finished", file=sys.stderr)
        return 130
    except Exception as error:
        if type(error).__name__ != "PapermillExecutionError":
            raise
        print(f"error: a cell of the notebook failed\n{error}", file=sys.stderr)
        return 1


def _step(args: argparse.Namespace) -> int:
    from cachequant.study import compute, params, reproduce, results, runner, stage, summary

    if args.step == "compute":
        compute.compute(args.set, args.profile, args.notebooks)
    elif args.step == "report":
        print(compute.report(args.set, args.profile))
    elif args.step == "run":
        done = runner.run(args.notebook, args.set, args.profile, params.parse(args.parameters))
        print(f"{results.path(done.name, done.set)} in {compute.minutes(done.provenance['seconds'])}")
    elif args.step == "stage":
        print("\n".join(stage.stage()))
    elif args.step == "summary":
        print(summary.write(args.set))
    elif args.step == "readme":
        print(summary.readme())
    elif args.step == "reproduce":
        rows = reproduce.compare()
        print(reproduce.describe(rows))
        return 0 if all(row.ok is not False for row in rows) else 1
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TQDM_DISABLE", "1")
    sys.exit(main())
