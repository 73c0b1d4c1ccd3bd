"""The book as built from the published results: complete, without warnings, readable without a network."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parent.parent.parent
TOC = yaml.safe_load((ROOT / "_toc.yml").read_text())
PAGES = [TOC["root"], *(c["file"] for part in TOC["parts"] for c in part["chapters"])]


@pytest.fixture(scope="session")
def html(tmp_path_factory):
    """Folder of the HTML, built in a copy so that the working tree's own book stays as it is."""
    tree = tmp_path_factory.mktemp("book")
    for name in ("_config.yml", "_toc.yml", "requirements.lock"):
        shutil.copy(ROOT / name, tree)
    for name in ("book", "notebooks", "results/reference"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("executed", "__pycache__"))
    (tree / ".pytest_cache").mkdir()  # what other tools leave behind is not a page
    (tree / ".pytest_cache" / "README.md").write_text("# pytest cache directory\n")
    environment = os.environ | {
        **{"CACHEQUANT_RESULTS": "reference", "TQDM_DISABLE": "1", "JUPYTER_PREFER_ENV_PATH": "1"},
        **{"IPYTHONDIR": str(tree / "notebooks" / "ipython")},
    }
    jupyter_book = str(Path(sys.executable).parent / "jupyter-book")
    for command in (
        [sys.executable, "-m", "cachequant.study", "stage"],
        [jupyter_book, "build", ".", "-q", "-n", "-W", "--keep-going"],
    ):
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return tree / "_build" / "html"


@pytest.fixture(scope="session")
def soups(html):
    return {p: BeautifulSoup(p.read_text(encoding="utf8"), "html.parser") for p in sorted(html.rglob("*.html"))}


def test_every_page_of_the_contents_is_there(html):
    assert (html / "index.html").is_file()
    assert [p for p in PAGES if not (html / f"{p}.html").is_file()] == []


def test_nothing_is_loaded_from_outside(soups):
    for page, soup in soups.items():
        for tag in soup.find_all(["script", "link", "img", "iframe", "source", "video"]):
            address = tag.get("src") or tag.get("href") or ""
            assert not urlsplit(address).netloc, f"{page.name}: {tag}"
        for style in soup.find_all("style"):
            assert "http" not in style.get_text(), page.name


def test_no_style_sheet_imports_from_outside(html):
    for sheet in html.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf8")), sheet.name


def test_no_internal_link_is_broken(html, soups):
    anchors = {page: {tag["id"] for tag in soup.find_all(id=True)} for page, soup in soups.items()}
    broken = []
    for page, soup in soups.items():
        for link in soup.find_all("a", href=True):
            parts = urlsplit(link["href"])
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not target.is_file():
                broken.append(f"{page.name}: {link['href']}")
            elif parts.fragment and target in anchors and unquote(parts.fragment) not in anchors[target]:
                broken.append(f"{page.name}: {link['href']} (no such place)")
    assert broken == []


def test_every_picture_has_a_description(html, soups):
    for page in PAGES:
        for image in soups[html / f"{page}.html"].find("article").find_all("img"):
            assert len(image.get("alt", "")) > 20, f"{page}: {image.get('src')}"


def test_pages_say_whose_numbers_they_show(html, soups):
    for page in PAGES:
        source = ROOT / f"{page}.md"
        if source.is_file() and "results.both(" in source.read_text():
            text = soups[html / f"{page}.html"].find("article").get_text()
            assert "The published reference run" in text, page


def test_no_page_names_a_folder_of_the_machine(soups):
    for page, soup in soups.items():
        text = soup.get_text()
        for folder in (str(ROOT), str(Path.home()), tempfile.gettempdir() + "/", sys.prefix):
            assert len(folder) < 6 or folder not in text, f"{page.name}: {folder}"
