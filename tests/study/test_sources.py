from cachequant.study import sources


def names(code):
    return {str(p.relative_to(sources.PACKAGE)) for p in sources.modules(code)}


def test_imports_are_followed_through_modules_and_into_functions():
    found = names("from cachequant.study import compute")
    assert {"__init__.py", "study/__init__.py", "study/compute.py", "study/runner.py", "errors.py"} <= found
    assert "study/summary.py" not in found


def test_lazy_attributes_count_as_imports():
    assert "decoder/model.py" in names("import cachequant as cq")


def test_a_module_named_by_a_string_counts():
    code = 'command = ["-m", "cachequant.study.worker"]'
    assert "study/worker.py" in names(code)
    assert names("import numpy\nx = 'cachequant is a name'") == set()


def test_layout_comments_and_docstrings_do_not_change_a_digest():
    a = 'def f(x):\n    """Doc."""\n    return x + 1  # why\n'
    b = 'def f( x ):\n    """Another."""\n\n    return (x + 1)\n'
    assert sources.digest(a) == sources.digest(b) != sources.digest(a.replace("1", "2"))
    assert sources.meaning('class A:\n    """Doc."""\n') == "class A:\n    pass"


def test_a_digest_follows_the_library(monkeypatch, tmp_path):
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "one.py").write_text("from cachequant import two\n")
    (tmp_path / "two.py").write_text("x = 1\n")
    monkeypatch.setattr(sources, "PACKAGE", tmp_path)
    code = "from cachequant.one import y"
    before = sources.digest(code)
    (tmp_path / "two.py").write_text("x = 1  # the same\n")
    assert sources.digest(code) == before
    (tmp_path / "two.py").write_text("x = 2\n")
    assert sources.digest(code) != before
