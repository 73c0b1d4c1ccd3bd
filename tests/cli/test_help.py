"""Help answers at once, shows an example, and imports nothing that computes."""

import resource
import subprocess
import sys

import pytest

COMMANDS = [
    [], ["generate"], ["chat"], ["perplexity"], ["bench"], ["bench", "decode"], ["bench", "gemm"], ["doctor"],
    ["verify"], ["bench", "attention"], ["bench", "prefill"], ["bench", "prefix"], ["bench", "transformers"],
    ["memory"], ["calibrate"], ["materialize"], ["quantize"], ["export"], ["cache"], ["cache", "ls"],
    ["cache", "clear"], ["run"], ["session"], ["session", "info"], ["session", "verify"], ["session", "replay"],
    ["session", "compare"], ["tune"],
]  # fmt: skip
HEAVY = {"torch", "transformers", "numba", "numpy", "matplotlib", "datasets", "huggingface_hub", "gguf", "rich", "yaml"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c) or "root")
def test_help_shows_an_example(command, cli):
    code, out, err = cli(*command, "--help")
    assert (code, err) == (0, "")
    assert "Example" in out
    assert "  cachequant " in out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c) or "root")
def test_every_command_but_groups_has_json(command, cli):
    _, out, _ = cli(*command, "--help")
    assert ("--json" in out) == (command not in ([], ["bench"], ["cache"], ["session"]))


def test_help_imports_nothing_that_computes():
    code = (
        "import sys; from cachequant.cli import call\n"
        "for command in sys.argv[1:]: assert call([*command.split(), '--help']) == 0\n"
        f"print(sorted({HEAVY!r} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *(" ".join(c) for c in COMMANDS)], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"


def test_help_is_quick():
    """Processor time, which other work on the machine does not stretch: 0.2 s when this was written."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "cachequant.cli", "--help"], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1


def test_version_and_no_command(cli):
    code, out, _ = cli("--version")
    assert code == 0
    assert out.startswith("cachequant ")
    code, out, _ = cli()
    assert code == 0
    assert "Commands:" in out
