"""The page and its files: what they say is what the summaries say, whatever the order of files."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agon.cli import app
from agon.commands.report import experiment_beside, report
from agon.errors import ConfigError, DataError
from agon.experiments.matrix import read_matrix
from agon.experiments.spec import Experiment
from agon.experiments.summary import arm_row, contrast_rows
from agon.report.arms import COLOURS
from agon.report.charts import SVG
from agon.report.findings import Findings, find
from agon.report.page import Section, render, sections
from agon.report.published import ROWS
from agon.report.rounds import read_rounds
from agon.report.words import interval, percent, points, points_interval
from made_up_results import HOSTILE, all_cells, write_cells

MISSING = ("agon--seed3", "fixed--seed1", "fixed--seed2", "fixed--seed3")


@pytest.fixture(scope="module")
def names(experiment: Experiment) -> list[str]:
    return [name for name in all_cells(experiment) if name not in MISSING]


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, experiment: Experiment, names: list[str]
) -> Path:
    return write_cells(tmp_path_factory.mktemp("results"), experiment, names, HOSTILE)


@pytest.fixture(scope="module")
def found(folder: Path, experiment: Experiment) -> Findings:
    return find(read_matrix([folder], experiment))


@pytest.fixture(scope="module")
def made(found: Findings) -> list[Section]:
    return sections(found)


@pytest.fixture(scope="module")
def page(found: Findings, made: list[Section]) -> str:
    return render(found, made, read_rounds(found.matrix))


def rows_of(page: str, table: str) -> list[list[str]]:
    """A table's cells as text."""
    text = page.split(f'id="table-{table}"')[1].split("</table>")[0]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", text.split("<tbody>")[1], re.DOTALL)
    return [
        [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t", row)] for row in rows
    ]


def test_the_main_table_says_what_the_summaries_say(page: str, found: Findings) -> None:
    rows = {row[0]: row for row in rows_of(page, "main") if row[0]}
    for arm, runs in found.matrix.arms.items():
        row = arm_row(arm, runs)
        assert rows[arm][3:5] == [percent(row.mean), interval(row.low, row.high)]
        assert rows[arm][5].split() == [percent(value) for value in row.by_seed]
        assert rows[arm][8:11] == [f"{value:.0f}" for value in (row.generated, row.last, row.read)]
    assert rows["fixed"][1] == "no cell is in"


def test_the_contrasts_say_what_the_summaries_say(page: str, found: Findings) -> None:
    assert found.matrix.experiment is not None
    expected = contrast_rows(found.matrix.experiment, found.matrix.arms)
    shown = rows_of(page, "contrasts")
    assert len(shown) == len(expected) == 2
    for row, cells in zip(expected, shown, strict=True):
        assert cells[0] == row.spec.name
        assert cells[2:4] == [points(row.difference.mean), points_interval(row.difference)]
        assert cells[6] == "2"


def test_published_figures_stand_in_their_own_columns_alone(page: str) -> None:
    theirs = re.findall(r'<td class="num theirs[^"]*">([^<]*)</td>', page)
    assert {text for text in theirs if text} <= {row.pass_1 for row in ROWS} | {
        row.last for row in ROWS
    }
    assert "about 30" in theirs
    assert page.count("published, not ours: Qwen3-0.6B, DeepMath-hard") == 1


def test_files_may_come_in_any_order_and_from_any_folder(
    tmp_path: Path, experiment: Experiment, names: list[str], page: str
) -> None:
    for index, name in enumerate(reversed(names)):
        write_cells(tmp_path / "zyx"[index % 3], experiment, [name], HOSTILE)
    matrix = read_matrix([tmp_path / part for part in "yzx"], experiment)
    again = find(matrix)
    assert render(again, sections(again), read_rounds(matrix)) == page


def test_missing_cells_are_named_and_figures_called_preliminary(page: str) -> None:
    missing = page.split('id="missing"')[1].split("</details>")[0]
    assert re.findall(r"<b>(.*?)</b>: seed ([\d, ]+)", missing) == [
        ("agon", "3"),
        ("fixed", "1, 2, 3"),
    ]
    assert "<strong>20 of 24</strong>" in page
    assert "preliminary until all are" in page


def test_a_whole_matrix_is_not_called_preliminary(tmp_path: Path, experiment: Experiment) -> None:
    matrix = read_matrix(
        [write_cells(tmp_path, experiment, all_cells(experiment))], experiment
    )  # fmt: skip
    whole = find(matrix)
    text = render(whole, [], read_rounds(matrix))
    assert "the matrix is complete" in text
    assert "preliminary" not in text


def test_every_section_has_something_to_show(made: list[Section]) -> None:
    assert [section.name for section in made] == [
        "contrasts", "main", "orderings", "square", "tokens", "curves", "changes", "blind-spots",
        "ablations", "controls", "lengths",
    ]  # fmt: skip
    assert sum(len(section.charts) for section in made) == 13


def test_every_figure_has_its_caption_its_n_and_words_for_those_who_do_not_see(page: str) -> None:
    figures = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert len(figures) == 13
    for number, figure in enumerate(figures, start=1):
        [caption] = re.findall(r"<figcaption[^>]*>(.*?)</figcaption>", figure, re.DOTALL)
        assert caption.startswith(f"<b>Figure {number}. ")
        [n] = re.findall(r'<span class="n">n: (.*?)\.</span>', caption)
        assert re.search(r"\d seed", n)
        [alt] = re.findall(r'role="img" aria-label="([^"]*)"', figure)
        assert len(alt) > 60
        assert re.search(r"\d", alt)


def test_every_table_has_a_caption_with_its_n(page: str) -> None:
    captions = re.findall(r"<caption>(.*?)</caption>", page, re.DOTALL)
    assert len(captions) == 12
    for caption in captions:
        assert re.search(r'<span class="n">n: .*\d.*\.</span>', caption, re.DOTALL)


def test_what_a_model_wrote_is_text_and_nothing_else(page: str) -> None:
    assert "onerror=window.pwned" in page  # the draft is there
    for opened in ("<img", "<script>window", "</script><script>window", "<!--<script"):
        assert opened not in page
    assert page.count("<script") == 2
    assert page.count("</script>") == 2


def test_names_from_the_files_are_escaped_too(
    tmp_path: Path, experiment: Experiment, names: list[str]
) -> None:
    folder = write_cells(tmp_path, experiment, ["grpo--seed1"])
    file = folder / "grpo--seed1.json"
    file.write_text(file.read_text().replace('"about":"plain"', '"about":"<img src=x>"'))
    matrix = read_matrix([folder], None)
    found = find(matrix)
    text = render(found, sections(found), read_rounds(matrix))
    assert "&lt;img src=x&gt;" in text
    assert "<img" not in text


def test_the_page_asks_for_nothing_and_styles_nothing_in_place(page: str) -> None:
    outside = page.split('id="rounds-data"')[0]
    allowed = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\"' )<]+", outside)) <= allowed
    assert not re.search(r'\sstyle="', outside)
    assert not re.search(r"\son[a-z]+=\"", outside)
    assert set(re.findall(r'(?:src|href)="([^"#][^"]*)"', outside)) == {"data:,"}


def test_parts_of_the_page_have_names_of_their_own(page: str) -> None:
    identifiers = re.findall(r'\sid="([^"]+)"', page)
    assert len(identifiers) == len(set(identifiers))
    targets = set(re.findall(r'(?:href="#|url\(#)([^")?]+)', page))
    assert targets <= set(identifiers)


def contrast(one: str, other: str) -> float:
    """The contrast of two colours (WCAG 2.2)."""

    def luminance(shade: str) -> float:
        parts = [int(shade[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", COLOURS)
def test_every_hue_stands_out_from_light_and_from_dark_ground(name: str) -> None:
    light, dark = COLOURS[name]
    assert contrast(light, "#ffffff") >= 3
    assert contrast(dark, "#1a1d23") >= 3


def test_the_command_writes_the_page_the_figures_and_the_tables(
    folder: Path, spec: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str
) -> None:
    out = tmp_path / "out"
    words = ["report", str(folder), "--experiment", str(spec), "--out", str(out)]
    with pytest.raises(SystemExit) as end:
        app(words, standalone_mode=True)
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "20 of 24 cells are in" in printed
    assert "agon--seed3" in printed
    assert str(out / "index.html") in printed
    assert (out / "index.html").read_text() == page
    images = sorted((out / "figures").iterdir())
    assert len(images) == 26
    for image in images:
        if image.suffix == ".png":
            assert image.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
            assert image.stat().st_size > 5_000
        else:
            assert ElementTree.parse(image).getroot().tag == f"{{{SVG}}}svg"
    tables = (out / "tables.md").read_text()
    assert tables.count(" n: ") == 12
    assert "| agon |" in tables


def test_the_experiment_is_found_beside_its_results(tmp_path: Path) -> None:
    results = tmp_path / "results" / "mine"
    results.mkdir(parents=True)
    assert experiment_beside([results]) is None
    (tmp_path / "mine.toml").touch()
    assert experiment_beside([results]) == tmp_path / "mine.toml"


def test_a_missing_library_is_named_with_its_remedy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match=r"jinja2.*pip install 'agon-rl\[report\]'"):
        report([folder], None, tmp_path, Console())


def test_a_folder_that_cannot_be_written_is_named_before_the_work(
    folder: Path, spec: Path, tmp_path: Path
) -> None:
    from rich.console import Console

    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out .*file"):
        report([folder], spec, tmp_path / "file", Console())


def test_no_result_is_a_sentence(tmp_path: Path) -> None:
    from rich.console import Console

    with pytest.raises(DataError, match="no result file"):
        report([tmp_path], None, tmp_path / "out", Console())
    assert not (tmp_path / "out").exists()
