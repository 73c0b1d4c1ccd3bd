"""The default model's geometry and weights: its first two layers on real text."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from cachequant import schemes  # noqa: E402
from cachequant.assets import models  # noqa: E402
from cachequant.assets.store import ModelAsset  # noqa: E402
from cachequant.decoder.forward import Decoder  # noqa: E402
from cachequant.decoder.model import Model  # noqa: E402
from cachequant.hf import RotatedCache, attach, detach  # noqa: E402
from cachequant.study.torch_engine import build  # noqa: E402
from helpers import assert_near  # noqa: E402

TEXT = "The history of Paris begins on an island in the river, where a tribe of fishermen built a bridge. " * 14


def test_two_layers_of_it_give_the_logits_of_the_decoder():
    whole = models.resolve("smollm2-135m")
    config = replace(whole.config, layers=2)
    weights = {n: w for n, w in whole.weights.items() if not n.startswith("layers.") or int(n.split(".")[1]) < 2}
    asset = ModelAsset(whole.name, config, weights, None, whole.sha256, False, None, {})
    ours = Model(asset, Decoder(config, weights, schemes.get("fp32"))).with_kv("k4v3", "none")
    model, ids = build(config, weights, torch.float32), whole.tokenizer.encode(TEXT)[:300]
    with ours.session() as session:
        want = session.extend(ids, logits="all")
    tokens = torch.tensor([ids])
    chunked = RotatedCache(model.config, "k4v3")
    got = torch.cat([model(tokens[:, i : i + 32], cache=chunked).logits for i in range(0, 300, 32)], 1)
    assert_near(got[0], want)
    attach(model, "k4v3")
    assert_near(model(tokens).logits[0], want)
    detach(model)
