import json

import numpy as np
import pytest

from cachequant.assets import models
from cachequant.assets.materialize import materialize
from cachequant.errors import InputError
from helpers import TINY, checkpoint, transformers_logits, transformers_model

pytest.importorskip("torch")
TEXT = "In 1987 the city counted 12 345 people, 日本語 🙂 <|im_end|>\n"


@pytest.mark.parametrize("name", TINY)
def test_a_round_trip_changes_nothing(cache, tmp_path, name):
    from transformers import AutoModelForCausalLM

    first = models.resolve(checkpoint(name, str(tmp_path)))
    folder = materialize(first, tmp_path / "out")
    second = models.resolve(folder)
    assert first.config == second.config
    assert list(first.weights) == list(second.weights)
    assert all(np.array_equal(first.weights[key], second.weights[key]) for key in first.weights)
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    ids = range(40)
    assert np.array_equal(transformers_logits(model, ids), transformers_logits(transformers_model(name), ids))


def test_the_embedded_model_and_its_tokenizer_load_in_transformers(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    asset = models.resolve("smollm2-135m")
    folder = materialize("smollm2-135m", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer(TEXT)["input_ids"] == asset.tokenizer.encode(TEXT)
    assert (tokenizer.eos_token_id, tokenizer.bos_token_id) == (2, 1)
    chat = [{"role": "user", "content": "hi"}]
    assert "<|im_start|>user\nhi<|im_end|>" in tokenizer.apply_chat_template(chat, tokenize=False)
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    assert (model.config.rope_parameters["rope_theta"], model.generation_config.eos_token_id) == (100000.0, 2)
    loaded = model.state_dict()["model.layers.29.self_attn.q_proj.weight"].numpy()
    assert np.array_equal(loaded, asset.weights["layers.29.attn.q.weight"])


def test_progress_and_files(cache, tmp_path):
    asset, seen = models.resolve(checkpoint("gpt2", str(tmp_path))), []
    folder = materialize(asset, tmp_path / "out", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(asset.weights), len(asset.weights))
    assert {path.name for path in folder.iterdir()} == {"config.json", "generation_config.json", "model.safetensors"}
    assert json.loads((folder / "config.json").read_text())["model_type"] == "gpt2"


def test_an_existing_folder_is_left_alone(cache, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(InputError, match="is not an empty folder"):
        materialize("smollm2-135m", tmp_path / "out")
    with pytest.raises(InputError, match="is not an empty folder"):
        materialize("smollm2-135m", tmp_path / "out" / "mine")


def test_an_empty_folder_is_filled(cache, tmp_path):
    (tmp_path / "out").mkdir()
    materialize(models.resolve(checkpoint("gpt2", str(tmp_path))), tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").exists()
