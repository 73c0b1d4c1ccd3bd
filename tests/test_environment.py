"""One set of pins everywhere, and the commands that README gives are those that run in continuous integration."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lock():
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


def wanted():
    extras = PROJECT["optional-dependencies"]
    return [Requirement(r) for r in PROJECT["dependencies"] + extras["book"] + extras["test"]]


def test_every_pin_is_exact_and_has_no_local_version():
    for pin in lock().values():
        assert re.fullmatch(r"==[^=+,]+", str(pin.specifier)), pin


@pytest.mark.parametrize("need", wanted(), ids=str)
def test_the_lock_holds_what_the_project_asks_for(need):
    version = next(iter(lock()[canonicalize_name(need.name)].specifier)).version
    assert need.specifier.contains(version)


def test_the_lock_is_what_is_installed():
    different = {}
    for name, pin in lock().items():
        if pin.marker is None or pin.marker.evaluate():
            installed = metadata.version(name)
            if not pin.specifier.contains(installed):
                different[name] = (str(pin.specifier), installed)
    assert not different


def test_conda_users_get_the_same_pins():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pins = environment["dependencies"][-1]["pip"]
    assert {str(Requirement(p)) for p in pins} == {str(r) for r in lock().values()}
    assert f"python{PROJECT['requires-python']}" in environment["dependencies"]


def test_the_book_is_built_by_jupyter_book_1():
    needs = [r for r in wanted() if r.name == "jupyter-book"]
    assert [str(r.specifier) for r in needs] == ["<2,>=1.0.4"]
    assert metadata.version("jupyter-book").startswith("1.")


def commands(text):
    """`make TARGET ...` lines of a shell script or of the shell blocks of a Markdown file."""
    return re.findall(r"^\s*(make [a-z]+)", text, re.MULTILINE)


def test_the_commands_of_readme_are_those_of_the_ci_script():
    readme = (ROOT / "README.md").read_text()
    first = re.search(r"^```sh\n(.*?)^```", readme, re.DOTALL | re.MULTILINE).group(1)
    ci = commands((ROOT / ".ci" / "run").read_text())
    assert commands(first) == ["make book", "make test"]
    assert set(commands(first)) <= set(ci)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    everything = commands(readme) + re.findall(r"`(make [a-z]+)", readme)
    assert {c.split()[1] for c in everything} <= set(targets)


def test_make_lists_every_target_with_one_line():
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE).group(1).split())
    assert phony == set(re.findall(r"^([a-z]+):[^#\n]*## .+$", makefile, re.MULTILINE))
