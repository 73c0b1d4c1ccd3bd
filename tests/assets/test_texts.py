import re

import pytest

from cachequant.assets import hub, pins, texts, wikitext
from cachequant.assets.hashing import sha256_bytes
from cachequant.errors import AssetError, InputError

ROWS = ["", " = Title = \n", "", " A line with a\u2028separator . \n", ""]
RAW = " \n = Title = \n \n A line with a\u2028separator . \n \n"


@pytest.fixture
def small(cache, monkeypatch):
    """Pins of a WikiText of five rows, a process that has not asked the hub yet, and no hub."""
    digest = sha256_bytes(RAW.encode())
    pinned = {"test": ("wiki.test.raw", digest, "test"), "valid": ("wiki.valid.raw", digest, "validation")}
    monkeypatch.setattr(wikitext, "WIKITEXT", pinned)
    texts._default_names.cache_clear()

    def snapshot(*args, choices, **options):
        raise AssetError(f"no network. Choices: {choices}")

    monkeypatch.setattr(hub, "snapshot", snapshot)
    return cache


def write(folder, text=RAW):
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("test", "valid"):
        (folder / f"wiki.{split}.raw").write_bytes(text.encode())
    return folder


def test_rows_and_raw_file_are_each_others_inverse():
    assert wikitext.rows(RAW) == ROWS
    assert wikitext.join_raw(ROWS) == RAW


def test_both_texts_of_a_split_and_their_hashes(small, tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_WIKITEXT", str(write(tmp_path / "w")))
    raw, joined = texts.resolve("wikitext-2-test-raw"), texts.resolve("wikitext-2-test")
    assert raw.text == RAW and joined.text == "\n\n".join(ROWS)
    assert raw.sha256 == sha256_bytes(RAW.encode()) != joined.sha256 == sha256_bytes(joined.text.encode())
    assert (raw.name, joined.name) == ("wikitext-2-test-raw", "wikitext-2-test")
    assert "CC BY-SA" in raw.licence and "Salesforce/wikitext" in raw.source


def test_the_environment_variable_comes_first_and_must_be_right(small, tmp_path, monkeypatch):
    write(small / "texts")
    monkeypatch.setenv("CACHEQUANT_WIKITEXT", str(tmp_path))
    for ask in (lambda: texts.resolve("wikitext-2-test"), texts.default):
        with pytest.raises(AssetError, match="holds no wiki.test.raw. Choices: CACHEQUANT_WIKITEXT .* enwiki"):
            ask()


def test_a_changed_file_is_refused(small, tmp_path, monkeypatch):
    monkeypatch.setenv("CACHEQUANT_WIKITEXT", str(write(tmp_path / "w", RAW + "more")))
    with pytest.raises(AssetError, match="wiki.test.raw has sha256 .*, expected"):
        texts.resolve("wikitext-2-test")


def test_the_cache_folder_comes_before_the_hub(small):
    write(small / "texts")
    assert texts.resolve("wikitext-2-valid-raw").text == RAW


def test_without_a_hub_the_choices_are_named(small):
    with pytest.raises(AssetError, match="no network. Choices: CACHEQUANT_WIKITEXT .*, the embedded text enwiki"):
        texts.resolve("wikitext-2-test")


def test_rows_of_the_hub_become_the_file_and_are_kept(small, tmp_path, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    folder = tmp_path / "snapshot" / "wikitext-2-raw-v1"
    folder.mkdir(parents=True)
    for number, part in enumerate((ROWS[:2], ROWS[2:])):
        file = folder / f"validation-0000{number}-of-00002.parquet"
        parquet.write_table(pyarrow.table({"text": part}), file)
    asked = []

    def snapshot(repository, revision, kind, wanted, complete, choices):
        files = [f"wikitext-2-raw-v1/{file.name}" for file in folder.iterdir()]
        asked.append((repository, kind, wanted(files), complete(files), complete([])))
        return folder.parent

    monkeypatch.setattr(hub, "snapshot", snapshot)
    assert texts.resolve("wikitext-2-valid-raw").text == RAW
    assert (small / "texts" / "wiki.valid.raw").read_bytes() == RAW.encode()
    assert texts.resolve("wikitext-2-valid").text == "\n\n".join(ROWS)
    pattern = "wikitext-2-raw-v1/validation-*.parquet"
    assert asked == [("Salesforce/wikitext", "dataset", [pattern], True, False)]


def test_other_rows_of_the_hub_are_refused(small, monkeypatch):
    monkeypatch.setattr(wikitext, "_hub_rows", lambda split: ["other\n"])
    with pytest.raises(AssetError, match="test of Salesforce/wikitext has sha256"):
        texts.resolve("wikitext-2-test")
    assert not (small / "texts").exists()


def test_the_default_is_wikitext_where_it_can_be_had(small):
    write(small / "texts")
    assert (texts.default().name, texts.calibration().name) == ("wikitext-2-test", "wikitext-2-valid")


def test_the_hub_is_asked_once_a_process(small, monkeypatch):
    asked = []
    monkeypatch.setattr(
        hub, "snapshot", lambda *args, **options: asked.append(1) or (_ for _ in ()).throw(AssetError("no"))
    )
    monkeypatch.setattr(texts, "_enwiki", lambda name, say: texts.Text(name, "", ""))
    assert [texts.default().name, texts.calibration().name] == ["enwiki", "enwiki-calibration"]
    assert asked == [1]


def test_the_embedded_text_is_prose_and_pinned():
    text = texts.resolve("enwiki")
    assert text.sha256 == pins.ENWIKI_TEXTS["enwiki"] and len(text.text) == 2_386_813
    assert text.text.startswith(
        "Anarchism\n\nAnarchism is a political philosophy that advocates self-governed societies"
    )
    assert "CC BY-SA" in text.licence and "gensim 4.4.0" in text.source
    for leftover in (
        r"\{\{|\}\}|\[\[|\]\]",
        r"''",
        r"https?://",
        r"&\w+;",
        r"</?[a-z]+>",
        r"^=+",
        r"\|thumb",
        "\ufffd",
    ):
        assert not re.search(leftover, text.text, re.M), leftover


def test_calibration_is_never_scored():
    scored, fitted = texts.resolve("enwiki").text, texts.resolve("enwiki-calibration").text
    paragraphs = {paragraph for paragraph in scored.split("\n\n") if len(paragraph) > 100}
    assert not paragraphs & set(fitted.split("\n\n"))
    assert len(fitted) > 300_000


def test_the_last_tenth_of_the_articles_is_for_calibration():
    parts = texts.split_articles([str(i) for i in range(106)])
    assert parts["enwiki"].split() == [str(i) for i in range(96)]
    assert parts["enwiki-calibration"].split() == [str(i) for i in range(96, 106)]


def test_a_file_is_read_as_it_is(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_bytes("one\r\ntwo é\n".encode())
    text = texts.resolve(file)
    assert (text.name, text.text, text.sha256) == ("mine.txt", "one\r\ntwo é\n", sha256_bytes(file.read_bytes()))


@pytest.mark.parametrize(
    ("data", "message"), [(b" \n", "the text is empty"), (b"ok \xff", r"not UTF-8 \(byte 3\)")], ids=["empty", "bytes"]
)
def test_files_that_are_no_texts_are_refused(tmp_path, data, message):
    (tmp_path / "f.txt").write_bytes(data)
    with pytest.raises(AssetError, match=message):
        texts.resolve(tmp_path / "f.txt")


@pytest.mark.parametrize("name", ["wikitext-103", "", "gone.txt"])
def test_other_names_are_refused_with_the_choices(name):
    with pytest.raises(InputError, match="allowed: wikitext-2-test, .*enwiki, .*path"):
        texts.resolve(name)
