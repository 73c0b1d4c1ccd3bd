"""Studies of keys and values on a tiny model: what they capture, their errors against plain NumPy, their rows."""

import numpy as np
import pytest

import cachequant as cq
import helpers
from cachequant.errors import InputError
from cachequant.kernels.append import append
from cachequant.kv import calibration, formats
from cachequant.kv.basis import fitted, plain
from cachequant.kv.decode import decode
from cachequant.kv.pages import PagePool
from cachequant.kv.session import Session
from cachequant.study import distortion, kv_ablation, kv_layers, kv_rows, kv_vectors, sparse_values
from cachequant.study.kv_ablation import Ablated
from cachequant.study.kv_recoded import RecodedModel


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return cq.load(helpers.checkpoint("llama-coded", str(tmp_path_factory.mktemp("kv"))))


@pytest.fixture(scope="module")
def ids(model):
    return np.random.default_rng(1).integers(0, model.config.vocab, 90).tolist()


@pytest.fixture(scope="module")
def seen(model, ids):
    return kv_vectors.capture(model, ids)


@pytest.fixture(scope="module")
def study(model, ids):
    """`Ablated` without a calibration text, which a model without a tokenizer cannot read."""
    found = Ablated.__new__(Ablated)
    found._model, found._bases = model, {}
    found.moments, found.gram = calibration.moments(model._decoder, ids[::-1], 90), calibration.grams(model._asset)
    return found


def test_captured_vectors_give_the_attention_of_the_decoder(model, seen, ids):
    c = model.config
    assert sorted(seen) == [0, 1]
    assert seen[0].q.shape == (90, c.heads, c.head_dim) and seen[0].k.shape == (90, c.kv_heads, c.head_dim)
    assert sorted(kv_vectors.capture(model, ids, layers=[1])) == [1]
    ours = cq.kv.Attention(c.heads, c.kv_heads, c.head_dim)
    ours.append(seen[1].k, seen[1].v)
    everything = np.ones((90, 90), bool)
    np.testing.assert_allclose(
        kv_ablation.attend(seen[1], seen[1].k, seen[1].v, everything), ours.attend(seen[1].q), atol=2e-5
    )


@pytest.mark.parametrize("side", kv_vectors.SIDES)
def test_a_basis_is_undone(study, seen, side):
    x = seen[0].side(side)
    basis = study.basis("means-balance")
    y = kv_vectors.into(basis, 0, side, x)
    np.testing.assert_allclose(kv_vectors.out_of(basis, 0, side, y), x, atol=2e-3)
    assert not np.allclose(y, x, atol=0.1)


def test_shapes_show_an_outlier_and_what_the_rotation_does(seen):
    loud = {0: kv_vectors.Vectors(seen[0].q, seen[0].k.copy(), seen[0].v)}
    loud[0].k[:, 1, 5] += 50
    c = loud[0].k.shape
    found = kv_vectors.shapes(loud, plain(1, *c[1:]))
    keys = found["sides"]["keys"]
    assert (found["loudest"]["layer"], found["loudest"]["head"]) == (0, 1)
    assert np.argmax(found["loudest"]["channels"]["raw"]) == 5
    assert keys["raw"]["crest"] > 1.3 * keys["rotated"]["crest"]
    assert keys["rotated"]["density"] == pytest.approx(keys["calibrated"]["density"])  # the same basis here
    width = found["edges"][1] - found["edges"][0]
    assert keys["raw"]["density"].sum() * width == pytest.approx(1)


@pytest.mark.parametrize("row", distortion.gaussian(400), ids=lambda r: f"{r['bits']}-{r['head_dim']}")
def test_gaussian_errors_lie_between_bound_and_theory(row):
    assert row["bound_stored"] < row["bound"] < row["search"] < row["rms"] < 1.02 * row["lloyd_max"]
    assert row["shrinkage"]["rms"] < 1 and abs(1 - row["shrinkage"]["search"] - row["search"]) < 0.01


def test_errors_of_zero_vectors_are_zero():
    assert not distortion.coded(np.zeros((3, 16), np.float32), 3, search=False).any()


def test_stages_end_where_the_kernels_are(model, study, seen):
    """With all parts, the imitation in NumPy has the error of the page format that the kernels read."""
    rows = kv_ablation.stages(study, seen, (4, 4))
    assert [r["stage"] for r in rows] == [s[0] for s in kv_ablation.STAGES]
    other = study.with_kv("k4v4", "means-feedback")
    kernels = np.mean([r["error"] for r in kv_layers.output_cosine(other, seen)])
    assert rows[-1]["output"] == pytest.approx(kernels, rel=0.05)
    assert rows[-1]["output"] <= rows[-3]["output"]
    assert rows[2]["keys"] <= rows[1]["keys"]  # the search keeps the best of what it tried


def test_what_is_seen_exactly():
    rule = kv_ablation.seen_exactly(100)
    assert rule[40, 33] and rule[99, 97] and rule[99, 31] and not rule[99, 33] and not rule[99, 95]
    assert not kv_ablation.seen_exactly(100, own=False)[40, 33]
    assert not kv_ablation.seen_exactly(100, first=False)[99, 31]


def test_an_ablated_model_is_a_model_with_another_basis(model, study):
    other = study.with_kv("k4v4", "means")
    expected = fitted(study.moments, study.gram, "means", balanced=False, feedback=False)
    np.testing.assert_array_equal(other.pages.basis.array, expected.array)
    assert study.with_kv("k4v4", "none").pages.basis.tag == "rotation"
    assert other.fingerprint != study.with_kv("k4v4", "balance").fingerprint
    assert study.config is model.config


def test_cosines_fall_with_the_bits(model, seen):
    four, two = (kv_layers.output_cosine(model.with_kv(kv, "none"), seen) for kv in ("k4v4", "k4v4,1:k2v2"))
    assert four[0] == two[0] and two[1]["mean"] < four[1]["mean"] < 1
    assert four[1]["low"] <= four[1]["mean"]
    exact = kv_layers.output_cosine(model, seen)
    assert exact[0]["error"] == 0 and exact[0]["mean"] == pytest.approx(1)


def test_layers_alone():
    found = kv_layers.alone(2, 2)
    assert found == {
        "fp32,0:k2v32": (0, "keys"), "fp32,0:k32v2": (0, "values"),
        "fp32,1:k2v32": (1, "keys"), "fp32,1:k32v2": (1, "values"),
    }  # fmt: skip
    assert all(formats.get(name).compressed for name in found)
    summaries = {f"fp32/{name}/none": {"kl": i} for i, name in enumerate(found)}
    rows = kv_layers.sensitivity(summaries, 2, 2, "/none")
    assert rows == [{"layer": 0, "keys": 0, "values": 1}, {"layer": 1, "keys": 2, "values": 3}]


def test_sparse_values_hold_their_mass(seen):
    rows = sparse_values.measure(seen, masses=(0.5, 0.9, 1.0), queries=4)
    assert [r["mass"] for r in rows] == [0.5, 0.9, 1.0]
    assert all(r["held"] >= r["mass"] - 1e-9 for r in rows)
    assert rows[0]["read"] <= rows[1]["read"] <= rows[2]["read"] <= 1
    assert rows[2]["error"] < 1e-12 and rows[0]["error"] > rows[1]["error"]
    assert rows[0]["bytes"] == pytest.approx(0.5 + 0.5 * rows[0]["read"])


def test_one_heavy_page_is_enough():
    rng = np.random.default_rng(0)
    k, v = (rng.standard_normal((96, 1, 16)).astype(np.float32) for _ in range(2))
    q = np.repeat(1000 * k[40:41], 96, 0)  # all weight on token 40, in page 1
    (row,) = sparse_values.measure({0: kv_vectors.Vectors(q, k, v)}, masses=(0.999,), queries=1)
    assert row["read"] == pytest.approx(1 / 3) and row["error"] < 1e-6


def page(name, bits, value):
    return {"pages": name, "bits": bits, "delta_percent": {"value": value, "low": value, "high": value}}


def test_the_front_leaves_out_what_is_beaten():
    rows = [page("a", 16, 0.0), page("b", 8, 0.1), page("c", 4.25, 0.4), page("d", 4.25, 0.9), page("e", 2.25, 9.0)]
    assert [r["pages"] for r in kv_rows.front(rows)] == ["e", "c", "b", "a"]
    assert [r["pages"] for r in kv_rows.front([page("a", 16, 0.5), page("b", 8, 0.1)])] == ["b"]


def bench(coded, exact):
    return {"arms": {"kv-k4v4": {"speed": {"median": 1 / coded}}, "kv-fp32": {"speed": {"median": 1 / exact}}}}


def test_the_hybrid_saves_what_exact_pages_are_faster_by():
    found = kv_rows.hybrid({64: bench(2.0, 1.0), 256: bench(2.5, 2.4), 1024: bench(3.0, 9.0)}, 100.0)
    assert found["crossover"] == 1024 and found["most"] == pytest.approx(0.01)
    assert found["saved"]["1024"] == 0
    assert kv_rows.hybrid({64: bench(2.0, 1.0)}, 100.0)["crossover"] is None
    assert kv_rows.hybrid({64: bench(1.0, 2.0)}, 100.0) == {"crossover": 64, "saved": {"64": 0.0}, "most": 0.0}


def test_rows_count_the_bits(model):
    names = kv_rows.names(["k4v4", "k4v4/none", "fp16"])
    assert names == ["fp32/k4v4", "fp32/k4v4/none", "fp32/fp16"]
    with pytest.raises(InputError, match="k5v4"):
        kv_rows.names(["k5v4"])
    sums = dict.fromkeys(("kl", "top1", "top5", "centred_error", "mean_error", "max_error"), [0.0])
    schemes = {"fp32": {"scored": [9], "nll": [9.0]}, **{n: {"scored": [9], "nll": [9.0], **sums} for n in names}}
    rows = kv_rows.of({"schemes": schemes, "window": 64}, model.config)
    assert list(rows) == ["fp32", "k4v4", "k4v4/none", "fp16"]
    assert rows["k4v4"]["bits"] == 4 + 16 / 16 and rows["k4v4"]["bits_window"] == (32 + 5) / 2
    assert [rows[n]["calibrated"] for n in rows] == [False, True, False, False]
    assert kv_rows.model_of(model, "k4v4/none").kv.name == "k4v4"


def test_memory_rows_and_contexts(model):
    assert kv_rows.longest(model.config, [32, 96, 128]) == [32, 96]
    rows = kv_rows.memory("tiny", model.config, ["fp32", "k2v2"], [64, 96])
    assert [(r["kv"], r["context"]) for r in rows] == [("fp32", 64), ("fp32", 96), ("k2v2", 64), ("k2v2", 96)]
    assert rows[3]["ratio_fp32"] > rows[2]["ratio_fp32"] > 1


def test_sides_of_a_mixed_format():
    assert kv_rows.sides(formats.get("k4v4,1-2:k3v3"), 4) == "k4v4: 0, 3; k3v3: 1-2"
    assert kv_rows.fixed(["k4v4", "k4v4/none", "mixed", "fp16"]) == ["k4v4", "fp16"]


@pytest.mark.parametrize("kv", ["k4v4", "k3v2+exact0", "k4v4,1:k8v16"])
@pytest.mark.parametrize("own", [True, False], ids=["own-exact", "own-coded"])
def test_recoded_pages_read_what_their_codes_stand_for(model, study, ids, kv, own):
    """With all parts the bits of the model; with its own page coded, those of a float32 run over decoded rows."""
    made = study.with_kv(kv, "means-feedback")
    with RecodedModel(model, made.pages, own=own).session() as session, made.session() as whole:
        got = session.extend(ids, "hidden")
        assert session.pages[1:-1] and all(session._pool.is_coded(page) for page in session.pages[1:-1])
        if own:
            assert np.array_equal(got, whole.extend(ids, "hidden"))
            return
    stored = {}

    def see(layer, q, k, v):
        one = PagePool(model.config.layers, *k.shape[1:], made.pages)
        for i in range(0, len(k), 32) if made.kv.exact_pages == 0 else range(32, len(k), 32):
            rows, n = np.zeros((2, 32, *k.shape[1:]), np.float32), len(k[i : i + 32])
            rows[:, :n] = k[i : i + 32], v[i : i + 32]
            exact, codes = ([one.address(one.acquire(coded))] for coded in (False, True))
            append(*rows, np.array(exact), layer, 0, np.array(codes), made.pages.numbers)
            read = np.empty((2, k.shape[1], 32, k.shape[2]), np.float32)
            decode(np.array(codes), made.pages, layer, *read)
            k[i : i + 32], v[i : i + 32] = read.swapaxes(1, 2)[:, :n]
        stored[layer] = k.copy()

    with Session(model._decoder.watched(see), model.pool, model) as session:
        want = session.extend(ids, "hidden")
    helpers.assert_near(got, want)
    assert len(stored) == model.config.layers


@pytest.mark.parametrize("parts", ["means-feedback+rms", "no-rotation+rms+coded"])
def test_recoded_pages_do_not_depend_on_the_cut(study, ids, parts):
    made = study.with_kv("k4v3+exact0", parts)
    with made.session() as whole, made.session() as chunked:
        want = whole.extend(ids, "hidden")
        cuts = [ids[i : i + 7] for i in range(0, len(ids), 7)]
        assert np.array_equal(np.concatenate([chunked.extend(part, "hidden") for part in cuts]), want)
    assert made.pool.in_use == 0


def test_scales_without_the_search_are_root_mean_squares(study, seen, ids):
    made = study.with_kv("k4v4", "rotation+rms")
    with made.session() as session:
        session.extend(ids)
        page = session._pool.read(session.pages[1])
        scales = page.reshape(2, 2, 2, -1)[..., -64:].copy().view(np.uint16)  # layer, head, side, token
    for at, side in enumerate(kv_vectors.SIDES):  # of layer 0, whose rows do not depend on what attention read
        y = kv_vectors.into(made.pages.basis, 0, side, seen[0].side(side)[32:64])
        found = (scales[0, :, at].astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(found, np.sqrt((y * y).mean(-1)).T, rtol=2**-8)


def test_what_can_be_left_out_is_named(study):
    with pytest.raises(InputError, match="'search' in 'means\\+search' is not one of rms, coded"):
        study.with_kv("k4v4", "means+search")
