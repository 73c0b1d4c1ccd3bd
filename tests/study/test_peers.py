"""Other people's engines as arms: with fakes everywhere, and for real where they are installed."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import helpers
from cachequant.assets import models
from cachequant.errors import AssetError, ConfigError, InputError
from cachequant.study import (
    agreement,
    arms,
    bench,
    compute,
    ctranslate2_engine,
    llamacpp_engine,
    peer_files,
    peers,
    worker,
)
from cachequant.study.decode_bench import DecodeBench

NAMES = ("llamacpp-f32", "llamacpp-q8_0", "ctranslate2-fp32", "ctranslate2-int8")
PAGES = ("llamacpp-q8_0/f16", "llamacpp-q8_0/q8_0", "llamacpp-q8_0/q4_0")


@pytest.fixture
def absent(monkeypatch):
    """As if no engine were installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name in peers.MODULES else found(name))


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))
    return helpers.checkpoint("llama-gqa-tied", str(tmp_path))


def test_arms_are_known_whether_installed_or_not(absent):
    assert [arms.get(name).name for name in NAMES + PAGES] == list(NAMES + PAGES)
    for name in ("llamacpp-q4", "llamacpp-q8_0/q5_0"):
        with pytest.raises(InputError, match="llamacpp-q8_0/q4_0"):
            arms.get(name)
    assert peers.missing() == ["ctranslate2", "llama-cpp-python"]
    with pytest.raises(AssetError, match=r"llama-cpp-python is not installed \(make peers\)"):
        peers.require("llama_cpp")


def test_bench_goes_on_without_them(absent, monkeypatch, tmp_path_factory):
    model = helpers.checkpoint("llama-gqa-tied", str(tmp_path_factory.mktemp("tiny")))
    found = bench.decode(model, ["transformers-fp32", *NAMES], prompt=4, new=2, repeats=1, threads=1)
    assert list(found["arms"]) == ["transformers-fp32"] and found["missing"] == list(NAMES)
    assert found["provenance"]["missing"]["ctranslate2-int8"] == "ctranslate2 is not installed (make peers)"
    assert found["provenance"]["engines"] == {}


def test_a_conversion_that_fails_is_the_reason_of_all_arms_that_need_it(tiny, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    asset = models.resolve(tiny)
    asked = []

    class Failing:
        def __init__(self, threads):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def ask(self, do, seconds, **request):
            asked.append(request["form"])
            raise peers.WorkerError("no room")

    monkeypatch.setattr(peers, "Worker", Failing)
    lacking = peers.prepare([arms.get(n) for n in NAMES], tiny, asset, lambda *a: None)
    assert lacking == dict.fromkeys(NAMES, "no room")
    assert asked == ["gguf-f32", "gguf-q8_0", "ctranslate2"]


def test_files_are_made_once_under_the_hash_of_the_weights(tiny, tmp_path):
    asset = models.resolve(helpers.checkpoint("llama-wide-heads", str(tmp_path)))
    for form in ("gguf-q8_0", "gguf-export"):
        worker.ConvertWork(str(tmp_path / "llama-wide-heads"), form)
        made = peer_files.path(asset, form)
        assert made.is_file() and made.name.startswith(asset.sha256[:32])
        before = made.stat().st_mtime_ns
        assert peer_files.make(asset, form) == made and made.stat().st_mtime_ns == before
    assert len(list(made.parent.iterdir())) == 2
    with pytest.raises(InputError, match="'onnx'.*ctranslate2"):
        peer_files.path(asset, "onnx")


class FakeGenerator:
    """Counts upwards from the last token of the prompt, and calls back as CTranslate2 does."""

    def __init__(self, folder, **how):
        print("[t] [ctranslate2] [thread 1] [info]  - Selected ISA: AVX2", file=sys.stderr, flush=True)
        print(f"[t] [ctranslate2] [thread 1] [info] Loaded model {folder} on: cpu", file=sys.stderr, flush=True)

    def generate_batch(self, prompts, max_length, min_length, end_token, callback=None, return_logits_vocab=False, **_):
        assert min_length == max_length and end_token == []
        made = [int(prompts[0][-1]) + 1 + i for i in range(max_length)]
        for token in made if callback else ():
            assert callback(SimpleNamespace(token_id=token)) is False
        return [SimpleNamespace(sequences_ids=[made], logits=[[np.eye(99)[made[0]]]] if return_logits_vocab else [])]


@pytest.fixture
def fake_ctranslate2(monkeypatch, tiny, capfd):
    module = ModuleType("ctranslate2")
    module.__version__, module.Generator, module.set_log_level = "9.9", FakeGenerator, lambda level: None
    monkeypatch.setitem(sys.modules, "ctranslate2", module)
    monkeypatch.setattr(peers, "find_spec", lambda name: True)
    monkeypatch.setattr(peer_files, "make", lambda asset, form: "/some/folder")
    with capfd.disabled():  # its own capture of the file descriptor is under test
        yield ctranslate2_engine.CTranslate2(tiny, 1, "int8")


def test_ctranslate2_stamps_every_token(fake_ctranslate2):
    run = arms.generate(fake_ctranslate2, [5, 7], new=4)
    assert run.ids == [8, 9, 10, 11] and run.complete
    assert len(run.timing.token_seconds) == 3 and run.timing.prefill_tokens == 2 and run.timing.prefill_seconds > 0
    logits = fake_ctranslate2.start([5])
    assert fake_ctranslate2.choose(logits) == 6 and fake_ctranslate2.choose(fake_ctranslate2.step(20)) == 21


def test_ctranslate2_says_how_it_was_built_but_not_where_the_model_lies(fake_ctranslate2):
    assert fake_ctranslate2.engine == {"name": "CTranslate2", "version": "9.9", "build": "Selected ISA: AVX2"}


class FakeLlama:
    """Keeps what it is given."""

    def __init__(self, file, **how):
        self.how, self.n_tokens, self.ctx, self.closed = how, 0, None, False

    def eval(self, ids):
        self.n_tokens += len(ids)

    def reset(self):
        self.n_tokens = 0

    def close(self):
        self.closed = True


@pytest.fixture
def fake_llamacpp(monkeypatch, tmp_path):
    """Engines of a model with one KV head of 32 values and two layers, by their pages."""
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))
    model = helpers.checkpoint("llama-wide-heads", str(tmp_path))
    module = ModuleType("llama_cpp")
    module.__version__, module.Llama = "9.9", FakeLlama
    module.llama_print_system_info = lambda: b"AVX2 = 1 | "
    module.GGML_TYPE_F16, module.GGML_TYPE_Q4_0, module.GGML_TYPE_Q8_0 = 1, 2, 8
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setattr(peers, "find_spec", lambda name: True)
    return lambda pages: llamacpp_engine.LlamaCpp(model, 1, "q8_0", pages)


@pytest.mark.parametrize(
    ("pages", "kind", "size"), [(None, 1, 2), ("f16", 1, 2), ("q8_0", 8, 34 / 32), ("q4_0", 2, 18 / 32)]
)
def test_llamacpp_keeps_keys_and_values_as_asked(fake_llamacpp, pages, kind, size):
    engine = fake_llamacpp(pages)
    how = engine._llama.how
    assert (how["type_k"], how["type_v"], how["flash_attn"]) == (kind, kind, pages is not None)
    first = engine._llama
    engine.reserve(1000)
    assert first.closed and engine._llama.how["n_ctx"] >= 1000
    engine.grow([1, 2, 3])
    engine.grow([4])
    assert engine.held_bytes() == 4 * 2 * 2 * 32 * size
    engine.rewind(3)
    assert engine.held_bytes() == 3 * 2 * 2 * 32 * size


def test_llamacpp_refuses_heads_that_are_no_whole_blocks(tiny, monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: True)
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))
    with pytest.raises(InputError, match="heads of 8 values are no whole blocks of q4_0, which has 32"):
        llamacpp_engine.LlamaCpp(tiny, 1, "q8_0", "q4_0")


def test_a_model_that_ctranslate2_would_change_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_CACHE", str(tmp_path / "cache"))
    asset = models.resolve(helpers.checkpoint("llama-linear-rope", str(tmp_path)))
    with pytest.raises(ConfigError, match="rope_scaling is LinearScaling"):
        peer_files.make(asset, "ctranslate2")


def test_an_engine_makes_room_before_the_clock_starts():
    seen = []

    class Roomy:
        def reserve(self, tokens):
            seen.append(tokens)

        def start(self, ids):
            return ids[-1]

        step = staticmethod(lambda token: token)
        choose = staticmethod(lambda logits: logits + 1)

    assert arms.generate(Roomy(), [1, 2, 3], new=4).ids == [4, 5, 6, 7] and seen == [7]


def test_agreement_measures_distance(rng):
    truth = rng.standard_normal((3, 50)).astype(np.float32)
    assert agreement.compared(truth + 7, truth) == pytest.approx({"kl": 0, "top1": 1, "error": 0}, abs=1e-5)
    found = agreement.compared(-truth, truth)
    assert found["kl"] > 0.5 and found["top1"] == 0 and found["error"] > 2


def test_agreement_feeds_every_arm_the_same_tokens(tmp_path_factory):
    model = helpers.checkpoint("gpt2", str(tmp_path_factory.mktemp("tiny")))
    with DecodeBench(model, ["fp32", "transformers-fp32", "torch-int8"], threads=1) as found:
        rows = agreement.agreement(found, "fp32", prompt=9, steps=3)
    assert rows["transformers-fp32"]["kl"] < 1e-8 and rows["transformers-fp32"]["top1"] == 1
    assert rows["transformers-fp32"]["kl"] < rows["torch-int8"]["kl"] < 0.5


def test_the_study_leaves_their_chapter_out_without_them(absent, monkeypatch, capsys):
    monkeypatch.setattr(compute.runner, "up_to_date", lambda *_: False)
    monkeypatch.setattr(compute.runner, "execute", lambda *_: pytest.fail("computed"))
    compute.compute("local", "smoke", ["11_peers"])
    assert "skipped: peers are not installed (make peers); missing: ctranslate2, llama-cpp" in capsys.readouterr().out


def test_llamacpp_computes_with_the_codes_of_an_exported_file(tmp_path):
    """The same codes and steps as our `q8_0+head`: nearer to it than to the float32 model that both stand for."""
    if not importlib.util.find_spec("llama_cpp"):
        pytest.skip("llama-cpp-python is not installed (make peers)")
    model = helpers.checkpoint("llama-wide-heads", str(tmp_path))
    with DecodeBench(model, [peer_files.EXPORTED, "llamacpp-export", "fp32"], threads=1) as found:
        close = agreement.agreement(found, peer_files.EXPORTED, prompt=30, steps=8)
    assert close["llamacpp-export"]["kl"] < 0.5 * close["fp32"]["kl"] and close["llamacpp-export"]["top1"] == 1


@pytest.mark.parametrize("name", ["gpt2", "llama-gqa-tied", "llama3-rope", "llama-wide-heads"])
def test_installed_engines_run_our_weights(name, tmp_path_factory):
    """Close to our float32 at every position: the float32 arms as far as float16 keys and values allow."""
    names = [n for n in (*NAMES, *PAGES) if importlib.util.find_spec(arms.get(n).needs)]
    names = [n for n in names if name != "llama3-rope" or arms.get(n).form != "ctranslate2"]
    names = [n for n in names if name == "llama-wide-heads" or n not in PAGES]  # blocks of 32
    if not names:
        pytest.skip("neither CTranslate2 nor llama-cpp-python is installed (make peers)")
    model = helpers.checkpoint(name, str(tmp_path_factory.mktemp("tiny")))
    with DecodeBench(model, ["fp32", *names], threads=1) as found:
        close = agreement.agreement(found, "fp32", prompt=20, steps=3)
        speed = found.measure(6, 3, 2)
    assert found.crew.missing == {}
    for arm in names:
        assert close[arm]["kl"] < (1e-4 if arm.endswith("32") else 0.5), arm
        assert [len(run["ids"]) for run in speed["runs"][arm]] == [3, 3], arm
        assert len(speed["runs"][arm][0]["token_seconds"]) == 2, arm
        assert speed["provenance"]["engines"][arm]["build"] and speed["facts"][arm]["weight_bytes"] > 0, arm
