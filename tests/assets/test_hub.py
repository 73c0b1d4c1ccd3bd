"""The hub without a network: what is asked, what is said, and how long it takes."""

import time
from dataclasses import replace
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from cachequant.assets import hub, models, pins
from cachequant.errors import AssetError
from helpers import checkpoint

pytest.importorskip("torch")
CHOICES = "Choices: the embedded model smollm2-135m, gpt2-random .*, a folder with a checkpoint, a GGUF file"


@pytest.fixture
def network(monkeypatch):
    """A hub with an empty local cache whose answers a test sets."""
    fake = SimpleNamespace(asked=[], files=[], folder=None, local=None, fail=None)

    def snapshot_download(repository, **options):
        fake.asked.append((repository, options))
        if options.get("local_files_only"):
            if fake.local is None:
                raise LocalEntryNotFoundError("not cached")
            return str(fake.local)
        return str(fake.folder)

    def repo_info(self, repository, **options):
        fake.asked.append((repository, options))
        if fake.fail:
            raise fake.fail
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=file) for file in fake.files])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", repo_info)
    return fake


@pytest.mark.parametrize(
    "error",
    [OSError("name or service not known"), OfflineModeIsEnabled("offline"), RuntimeError("odd")],
    ids=["no network", "offline", "odd"],
)
def test_failures_name_the_choices(cache, network, error):
    network.fail = error
    with pytest.raises(AssetError, match=f"openai-community/gpt2 is not in the local hub cache.*{CHOICES}"):
        models.resolve("gpt2")


def test_a_network_that_hangs_is_given_up(cache, network, monkeypatch):
    monkeypatch.setattr(hub, "_SECONDS", 0.2)
    monkeypatch.setattr(huggingface_hub.HfApi, "repo_info", lambda self, *args, **options: time.sleep(30))
    start = time.monotonic()
    with pytest.raises(AssetError, match="no answer within 0.2 s.*Choices"):
        models.resolve("someone/model")
    assert time.monotonic() - start < 5


def test_the_limit_leaves_room_below_ten_seconds():
    assert hub._SECONDS <= 7


def test_gpt2_with_other_weights_is_refused(cache, network, tmp_path):
    network.folder = checkpoint("gpt2", str(tmp_path))
    network.files = ["config.json", "model.safetensors"]
    with pytest.raises(AssetError, match="config.json of openai-community/gpt2 has sha256 .* expected 0daed774"):
        models.resolve("gpt2")


def test_gpt2_is_pinned_and_only_what_is_needed_is_asked_for(cache, network, tmp_path, monkeypatch):
    monkeypatch.setitem(pins.HUB_MODELS, "gpt2", replace(pins.HUB_MODELS["gpt2"], files={}))
    network.folder = checkpoint("gpt2", str(tmp_path))
    network.files = ["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5", "tokenizer.json"]
    asset = models.resolve("gpt2")
    assert asset.name == "gpt2"
    assert asset.origin["repository"] == "openai-community/gpt2"
    assert all(options["revision"] == pins.HUB_MODELS["gpt2"].revision for _, options in network.asked)
    patterns = network.asked[-1][1]["allow_patterns"]
    assert "model.safetensors" in patterns and "tokenizer.json" in patterns
    assert not {"pytorch_model.bin", "tf_model.h5"} & set(patterns)


def test_a_pickle_is_asked_for_only_without_safetensors(cache, network, tmp_path):
    network.folder = checkpoint("gpt2", str(tmp_path))
    network.files = ["config.json", "pytorch_model.bin"]
    models.resolve("someone/model@v2")
    assert network.asked[-1][1]["revision"] == "v2"
    assert "pytorch_model.bin" in network.asked[-1][1]["allow_patterns"]


def test_the_local_hub_cache_needs_no_network(cache, network, tmp_path):
    network.local, network.fail = checkpoint("gpt2", str(tmp_path)), OSError("no network")
    assert models.resolve("someone/model").name == "someone/model"
    assert len(network.asked) == 1


def test_a_snapshot_without_weights_is_not_enough(cache, network, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    network.local, network.fail = tmp_path, OSError("no network")
    with pytest.raises(AssetError, match="no network"):
        models.resolve("someone/model")


def test_a_damaged_file_of_the_hub_cache_is_refused(cache, network, tmp_path):
    blob = tmp_path / "blobs" / ("0" * 64)
    blob.parent.mkdir()
    blob.write_bytes(b"not what its name says")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").symlink_to(blob)
    network.local = snapshot
    with pytest.raises(AssetError, match="model.safetensors has sha256 .* expected 0000"):
        models.resolve("someone/model")


def test_an_answer_and_an_error_pass_through():
    assert hub.answer_within(5, lambda: 42) == 42
    with pytest.raises(KeyError):
        hub.answer_within(5, lambda: {}["x"])
