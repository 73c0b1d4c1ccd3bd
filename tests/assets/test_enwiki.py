import bz2

import pytest

from cachequant.assets import enwiki
from cachequant.errors import AssetError

EXPORT = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/">
<page><title>A</title><ns>0</ns><revision><text>First &amp;amp; '''only'''.</text></revision></page>
<page><title>B</title><ns>0</ns><redirect title="A" /><revision><text>#REDIRECT [[A]]</text></revision></page>
<page><title>Talk:A</title><ns>1</ns><revision><text>Chatter.</text></revision></page>
<page><title>C</title><ns>0</ns><revision><text>Second.</text></revision></page>
</mediawiki>"""


def test_articles_only(tmp_path):
    (tmp_path / "dump.bz2").write_bytes(bz2.compress(EXPORT.encode()))
    assert enwiki.read_articles(tmp_path / "dump.bz2") == ["A\n\nFirst & only.", "C\n\nSecond."]


@pytest.mark.parametrize("data", [b"", b"text", bz2.compress(b"<mediawiki>"), bz2.compress(EXPORT.encode())[:-9]])
def test_what_is_not_an_export_is_refused(tmp_path, data):
    (tmp_path / "dump.bz2").write_bytes(data)
    with pytest.raises(AssetError, match="not a readable MediaWiki export"):
        enwiki.read_articles(tmp_path / "dump.bz2")


@pytest.mark.parametrize(
    ("markup", "prose"),
    [
        ("'''Bold''' and ''italic''.", "Bold and italic."),
        ("A [[cat]] and a [[Canis|dog]]s.", "A cat and a dogs."),
        ("Seen [http://x.org here] and [http://x.org].", "Seen here and."),
        ("Known.<ref>A book, {{cite|p=1}}.</ref> True.<ref name=x /> Yes.", "Known. True. Yes."),
        ("Long {{convert|5|km|mi}} way, {{lang|fr|[[la route]]}}.", "Long 5 km way, la route."),
        ("Out {{a|{{b|c}}|{{d}}}} side.", "Out side."),
        ("Years 1914{{ndash}}1918&nbsp;only.", "Years 1914–1918 only."),
        ("A name ({{IPA|x}}; born 1900) and (  ) more.", "A name (born 1900) and more."),
        ("Text.\n{| class=x\n|-\n| cell {|\n| inner\n|}\n|}\nMore text.", "Text.\n\nMore text."),
        ("[[File:x.png|thumb|A [[cat]] in [1890].]]After.", "After."),
        ("[[Category:Cats]]Kept.", "Kept."),
        ("Here <math>E = mc</math> and <math>\\frac12</math> end.", "Here E = mc and end."),
        ("<!-- note -->Seen<br />twice <small>small</small>.", "Seen twice small."),
        ("Top.\n== Life ==\nBorn.\n== See also ==\nLinks here.\n=== Deep ===\nGone.\n== Work ==\nDone.",
         "Top.\n\nLife\n\nBorn.\n\nWork\n\nDone."),
        ("Top.\n== Empty ==\n== References ==\n{{reflist}}", "Top."),
        ("* [[One]]\n* Two words\n* " + "A long item that is a sentence of its own, told in many words, ends here.",
         "A long item that is a sentence of its own, told in many words, ends here."),
        ("{{quote|Said so.|Someone}}", "Said so."),
        ("__NOTOC__\nKept.\n----\n", "Kept."),
    ],
)  # fmt: skip
def test_markup_becomes_prose(markup, prose):
    assert enwiki.strip(markup) == prose
