"""The report: what is read from run folders, the statistics, and the page itself."""

from __future__ import annotations

import base64
import csv
import html.parser
import itertools
import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest

from envfleet.cli.report import Report
from envfleet.report.axes import duration, tick_labels, ticks
from envfleet.report.curves import Curve, in_buckets, of_group
from envfleet.report.reading import read_run
from envfleet.report.statistics import group_runs, iqm, iqm_interval, iqm_of_known, on_shared_steps
from envfleet.report.summary import Summary
from envfleet.report.videos import ROOM
from envfleet.report.writing import write_comparison, write_report
from envfleet.track.files import FileTracker
from report_runs import PARTS, PLAN, add_video, make_run, metrics

EVIL = '<script>window.hacked=1</script>"><img src=x onerror=hacked=1>'


class Page(html.parser.HTMLParser):
    """A page that was read strictly: every element is closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        assert len(dict(attrs)) == len(attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in self.open:
            self.text[tag] = self.text.get(tag, "") + data

    def all(self, tag):
        return [attrs for name, attrs, _ in self.elements if name == tag]


def page_of(*folders, out=None):
    out = out or folders[0] / "report.html"
    write_comparison(folders, out, tables=False)
    return check(out.read_text("utf-8"))


def check(text):
    """A page that is whole, needs nothing from outside, and can be used without seeing it."""
    assert text.startswith("<!doctype html>\n<html lang=")
    page = Page(text)
    addresses = [
        value
        for _, attrs, _ in page.elements
        for name, value in attrs.items()
        if name in ("src", "href", "srcset", "poster", "action", "data", "xlink:href")
    ]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert "url(" not in page.text["style"]
    assert "@import" not in page.text["style"]
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {e[0] for e in page.elements}
    assert not [n for _, attrs, _ in page.elements for n in attrs if n.startswith("on")]
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    assert len(set(ids)) == len(ids)
    for _, attrs, _ in page.elements:
        for name in ("aria-labelledby", "aria-describedby", "aria-controls"):
            assert set(attrs.get(name, "").split()) <= set(ids)
        assert attrs.get("href", "").removeprefix("#") in {*ids, ""} or "download" in attrs
    for landmark in ("header", "nav", "main", "footer", "h1", "title"):
        assert sum(e[0] == landmark and "svg" not in e[2] for e in page.elements) == 1
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(attrs.get("alt") for attrs in page.all("img"))
    assert all(attrs.get("role") == "img" for attrs in page.all("svg"))
    assert text.count("<table>") == text.count("<caption>")
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    assert "nan" not in "".join(attrs.get("d", "") for attrs in page.all("path"))
    assert len(text) < 10_000_000
    return page


# The page


def test_a_run_becomes_one_page_with_everything_in_it(tmp_path):
    folder = make_run(
        tmp_path / "first",
        metrics(40),
        videos={"render_0.gif": 0, "render_1.gif": 5120},
        plan=PLAN,
        total_steps=10_240,
    )
    write_report(folder)
    assert sorted(path.name for path in folder.iterdir() if "report" in path.name) == [
        "report.html"
    ]
    page = check((folder / "report.html").read_text("utf-8"))
    titles = page.text["h3"]
    for title in ("Return", "Episode length", "Policy loss", "Throughput", "Time split"):
        assert title in titles
    for words in ("CartPole-v1", "first", "finished", "9 us per step", "learning_rate", "0.001"):
        assert words in page.text["body"]
    shown = [attrs["src"] for attrs in page.all("img")]
    files = sorted((folder / "renders").iterdir())
    assert [base64.b64decode(s.partition(",")[2]) for s in shown] == [f.read_bytes() for f in files]
    links = {attrs["href"] for attrs in page.all("a")}
    assert {"#overview", "#learning", "#videos", "#losses", "#speed", "#engine"} <= links


def test_values_under_the_pointer_are_those_of_the_table(tmp_path):
    columns = metrics(5)
    text = write_report(make_run(tmp_path / "run", columns)).read_text("utf-8")
    told = json.loads(re.search(r'<script type="application/json">(.*?)</script>', text)[1])
    (curve,) = told["curves"]
    assert curve["x"] == columns["step"].tolist()
    for key, name in {"y": "return_mean", "low": "return_p5", "high": "return_p95"}.items():
        np.testing.assert_allclose(curve[key], columns[name], rtol=1e-5)


def test_text_of_a_run_stays_text(tmp_path):
    columns = {**metrics(3), f"loss/{EVIL}".replace(",", ""): np.ones(3), EVIL: np.arange(3.0)}
    evil = {"env_id": EVIL, EVIL: EVIL, "total_steps": EVIL, "seed": EVIL}
    first = make_run(tmp_path / "a&b <i>", columns, plan={"backend": EVIL, "reason": EVIL}, **evil)
    second = make_run(tmp_path / "c", metrics(3), **{**evil, EVIL: "</style></title>"})
    for folders in ([first], [first, second]):
        page = page_of(*folders, out=tmp_path / "page.html")
        assert not [attrs for attrs in page.all("img") if attrs.get("src") == "x"]
        assert EVIL in page.text["main"]
        assert len([attrs for attrs in page.all("script") if "type" not in attrs]) == 1


def test_markdown_and_csv_stay_tables_whatever_the_names_are(tmp_path):
    runs = [
        make_run(tmp_path / f"a|b\n<i>{i}", metrics(3, i), seed=i, env_id="x|`y`") for i in (0, 1)
    ]
    _, markdown, table = write_comparison(runs, tmp_path / "out.html")
    lines = [line for line in markdown.read_text().splitlines() if line.startswith("|")]
    assert len(lines) == 3 + 4
    assert "<i>" not in markdown.read_text()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines[:3]} == {12}
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert rows[0]["group"] == "x|`y`"


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_run_that_has_hardly_begun_has_a_page(tmp_path, rows):
    folder = make_run(tmp_path / "run", metrics(rows) if rows else None, total_steps=10_000)
    page = page_of(folder)
    assert ("no metrics yet" in page.text["main"]) == (rows == 0)
    dots = [attrs for attrs in page.all("path") if attrs["class"] == "dots"]
    assert bool(dots) == (rows > 0)


def test_without_episodes_the_page_says_so(tmp_path):
    page = page_of(make_run(tmp_path / "run", metrics(20, episodes=False)))
    assert "No episode has ended" in page.text["main"]
    assert "Throughput" in page.text["h3"]
    assert "Return" not in page.text["h3"]


def test_a_hundred_thousand_rows_are_a_small_page(tmp_path):
    columns = metrics(500)
    columns["loss/kl"][77] = 1e6
    folder = make_run(tmp_path / "run", columns)
    head, *rows = (folder / "metrics.csv").read_text().splitlines()
    rows = [row.partition(",")[2] for row in rows]
    lines = [f"{256 * i},{rows[i % 500]}" for i in range(100_000)]
    (folder / "metrics.csv").write_text("\n".join([head, *lines]) + "\n")
    text = write_report(folder).read_text("utf-8")
    check(text)
    assert len(text) < 2_000_000
    assert "Charts show 100,000 rows in 600 buckets" in text
    assert "1000000" in text  # the highest of a bucket is not lost


def test_an_unknown_metric_has_a_chart_and_a_missing_one_no_place(tmp_path):
    columns = {
        "step": np.arange(1.0, 9),
        "temperature": np.arange(8.0),
        "flow/mean_batch": np.ones(8),
    }
    page = page_of(make_run(tmp_path / "run", columns))
    assert "temperature" in page.text["h3"]
    assert "Flow: mean batch" in page.text["h3"]
    assert "#losses" not in {attrs["href"] for attrs in page.all("a")}


def test_restarts_of_all_sessions_are_counted(tmp_path):
    columns = metrics(6)
    columns["restarts"] = np.array([0, 1, 3, 0, 0, 2])  # resumed after the third row
    run = read_run(make_run(tmp_path / "run", columns))
    assert Summary(run).restarts == 5
    assert "Restarts" in page_of(run.folder).text["h3"]


# Videos


def test_videos_that_do_not_fit_are_left_out_and_named(tmp_path):
    folder = make_run(tmp_path / "run", metrics(3))
    for index in range(5):
        add_video(folder, f"v{index}.gif", index * 100, padding=ROOM * 2 // 5)
    page = page_of(folder)
    assert [attrs["alt"] for attrs in page.all("img")] == [
        "The agent playing: run, step 0",
        "The agent playing: run, step 400",
    ]
    assert "3 videos are left out (7.2 MB)" in page.text["main"]
    assert "v3.gif" in page.text["main"]


def test_only_videos_of_the_runs_own_folder_are_shown(tmp_path):
    folder = make_run(tmp_path / "run", metrics(3), videos={"mine.gif": 1})
    other = make_run(tmp_path / "other", videos={"theirs.gif": 1})
    (folder / "renders" / "link.gif").symlink_to(other / "renders" / "theirs.gif")
    (folder / "renders" / "text.gif").write_text("secret")
    (tmp_path / "secret.mp4").write_bytes(b"\0\0\0\0ftypsecret")
    with (folder / "videos.jsonl").open("a") as file:
        for path in (tmp_path / "secret.mp4", "../secret.mp4", other / "renders" / "theirs.gif"):
            file.write(json.dumps({"step": 2, "path": str(path)}) + "\n")
        file.write("not JSON\n[1]\n")
    page = page_of(folder)
    assert [attrs["alt"] for attrs in page.all("img")] == ["The agent playing: run, step 1"]
    assert not page.all("video")
    for name in ("link.gif", "secret.mp4", "theirs.gif", "text.gif"):
        assert name in page.text["main"]


def test_an_mp4_file_gets_controls(tmp_path):
    folder = make_run(tmp_path / "run", metrics(3))
    (folder / "renders").mkdir()
    (folder / "renders" / "policy_4096.mp4").write_bytes(b"\0\0\0\x18ftypisom" + bytes(20))
    (video,) = page_of(folder).all("video")
    assert "controls" in video
    assert "step 4,096" in video["aria-label"]


# Reading


def test_what_the_tracker_writes_is_what_is_read(tmp_path):
    with FileTracker(tmp_path) as tracker:
        tracker.log({"return_mean": math.nan}, 10)
        tracker.log({"return_mean": 2.5, "later": 1.0}, 20)
        tracker.log({"return_mean": math.inf, "later": 1e-9}, 30)
    from_table = read_run(tmp_path).columns
    (tmp_path / "metrics.csv").unlink()
    from_lines = read_run(tmp_path).columns
    for columns in (from_table, from_lines):
        np.testing.assert_array_equal(columns["step"], [10, 20, 30])
        np.testing.assert_array_equal(columns["return_mean"], [math.nan, 2.5, math.nan])
        np.testing.assert_array_equal(columns["later"], [math.nan, 1.0, 1e-9])


def test_torn_and_foreign_files_are_read_as_far_as_they_go(tmp_path):
    folder = make_run(tmp_path / "run", metrics(4))
    (folder / "config.json").write_text('{"config": [')
    with (folder / "metrics.csv").open("a") as file:
        file.write("what,is this\n512,1")  # the run is writing its last line
    run = read_run(folder)
    assert len(run.steps) == 4
    assert [note.split()[0] for note in run.notes] == ["config.json", "metrics.csv:"]
    page = page_of(folder)
    assert "1 rows cannot be read" in page.text["main"]


def test_a_folder_that_is_not_a_runs_is_refused_and_nothing_written(tmp_path, capsys):
    run = make_run(tmp_path / "run", metrics(3))
    out = tmp_path / "page.html"
    for words, why in (
        ([tmp_path], "is not a run folder"),
        ([run, tmp_path / "gone"], "is not a run folder"),
        ([run, run], "is given 2 times"),
    ):
        assert Report(tuple(words), out).run() == 2
        assert why in capsys.readouterr().err
    assert Report((run,), tmp_path / "page.pdf").run() == 2
    assert list(tmp_path.iterdir()) == [run]


def test_the_command_writes_page_and_tables_and_imports_no_torch(tmp_path):
    runs = [make_run(tmp_path / f"s{seed}", metrics(4, seed), seed=seed) for seed in range(2)]
    program = (
        "import sys; from envfleet.cli.report import Report; from pathlib import Path\n"
        "assert Report(tuple(map(Path, sys.argv[1:]))).run() == 0\n"
        "assert not {'torch', 'matplotlib', 'envfleet.training'} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, runs)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["report.html", "report.md", "report.csv"]
    check((tmp_path / "report.html").read_text("utf-8"))


# Comparing


def test_runs_that_differ_in_the_seed_are_one_group(tmp_path):
    folders = [
        make_run(
            tmp_path / f"lr{rate}" / f"s{seed}", metrics(50, seed), seed=seed, learning_rate=rate
        )
        for rate in (0.001, 0.003)
        for seed in range(3)
    ]
    out = tmp_path / "compared.html"
    page = page_of(*folders, out=out)
    assert "6 runs in 2 groups" in page.text["h1"]
    assert "lowest to highest of 3 runs" in page.text["ul"]
    assert "lr0.003/s2" in page.text["table"]
    _, _, table = write_comparison(folders, out)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [(row["group"], row["runs"]) for row in rows] == [
        ("learning_rate=0.001", "3"),
        ("learning_rate=0.003", "3"),
    ]
    returns = [read_run(folder).last("return_mean") for folder in folders[:3]]
    assert float(rows[0]["return (IQM)"]) == pytest.approx(np.mean(returns))
    assert float(rows[0]["95 % low"]) == pytest.approx(min(returns))


def test_runs_with_one_seed_twice_are_said_to_depend_on_each_other(tmp_path):
    folders = [make_run(tmp_path / name, metrics(5)) for name in "ab"]
    assert "runs share a seed" in page_of(*folders, out=tmp_path / "page.html").text["main"]


def test_a_group_keeps_its_colour_where_another_has_no_such_metric(tmp_path):
    plain = make_run(tmp_path / "a", metrics(5))
    richer = make_run(tmp_path / "b", {**metrics(5), "extra": np.ones(5)}, learning_rate=1.0)
    page = page_of(plain, richer, out=tmp_path / "page.html")
    curves = [attrs["class"] for attrs in page.all("g")]
    assert curves[:2] == ["curve c0", "curve c1"]
    assert curves[-1] == "curve c1"


# Statistics


def test_the_interquartile_mean_is_the_mean_of_the_middle_half():
    assert iqm(np.arange(1.0, 9)) == 4.5
    assert iqm(np.array([0.0, 1, 2, 1000])) == 1.5
    assert iqm(np.array([1.0, 2, 9])) == 4.0  # too few to leave any out
    pi = np.array([3.0, 1, 4, 1, 5, 9, 2, 6, 5, 3])
    assert iqm(pi) == pytest.approx(22 / 6)  # as scipy's trim_mean with a quarter
    np.testing.assert_array_equal(iqm(np.array([[1.0, 2], [3, 4]]), axis=0), [2, 3])


def test_the_bootstrap_interval_covers_as_often_as_it_says():
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(40):
        told = iqm_interval(generator.normal(5.0, 1.0, 30).tolist())
        assert told.low < told.estimate < told.high
        hits += told.low <= 5.0 <= told.high
    assert 34 <= hits <= 40
    assert iqm_interval([1.0, 2.0, 3.0]) == iqm_interval([1.0, 2.0, 3.0])


def test_one_run_has_no_interval_and_none_no_mean():
    one = iqm_interval([3.0, math.nan])
    assert one.estimate == 3.0
    assert math.isnan(one.low)
    assert math.isnan(iqm_interval([]).estimate)


def test_curves_of_other_steps_are_compared_on_shared_ones():
    a = np.array([0.0, 10, 20]), np.array([0.0, 1, 2])
    b = np.array([0.0, 20, 40]), np.array([0.0, 2, 4])
    steps, rows = on_shared_steps([a, b], points=5)
    np.testing.assert_allclose(rows[1], steps / 10)
    assert np.isnan(rows[0][steps > 20]).all()
    np.testing.assert_allclose(iqm_of_known(rows), steps / 10)
    same, _ = on_shared_steps([a, a], points=5)
    np.testing.assert_array_equal(same, a[0])


def test_the_band_of_a_group_is_the_range_of_its_seeds(tmp_path):
    values = [np.array([1.0, 2]), np.array([3.0, 6]), np.array([2.0, 4])]
    runs = [
        read_run(make_run(tmp_path / str(i), {"step": [1, 2], "x": v}, seed=i))
        for i, v in enumerate(values)
    ]
    (group,) = group_runs(runs)
    curve = of_group(group, "x")
    np.testing.assert_array_equal(curve.y, [2, 4])
    np.testing.assert_array_equal(curve.low, [1, 2])
    np.testing.assert_array_equal(curve.high, [3, 6])


def test_buckets_keep_extremes_and_gaps():
    y = np.arange(1000.0)
    y[500:510] = np.nan
    y[123] = -50
    few = in_buckets(Curve("y", np.arange(1000.0), y), points=100)
    assert len(few.x) == 100
    assert np.isnan(few.y[50])
    assert few.low[12] == -50
    assert few.y[3] == pytest.approx(34.5)
    assert (few.low[3], few.high[3]) == (30, 39)


# Words


@pytest.mark.pure
@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 40_192, ["0", "10k", "20k", "30k", "40k"]),
        (0, 2e6, ["0", "0.5M", "1M", "1.5M", "2M"]),
        (-0.045, 0.01, ["-0.04", "-0.03", "-0.02", "-0.01", "0", "0.01"]),
        (0, 4e-5, ["0", "1e-05", "2e-05", "3e-05", "4e-05"]),
    ],
)
def test_ticks_are_round_numbers_in_one_unit(low, high, labels):
    assert tick_labels(ticks(low, high)) == labels


@pytest.mark.pure
def test_durations_are_told_in_two_units():
    told = [duration(s) for s in (4.24, 60, 200, 7500, math.nan)]
    assert told == ["4.24 s", "1 min", "3 min 20 s", "2 h 5 min", "\N{EN DASH}"]


def test_the_parts_of_the_time_are_summed(tmp_path):
    columns = metrics(10)
    told = Summary(read_run(make_run(tmp_path / "run", columns)))
    assert told.parts.keys() == PARTS.keys()
    assert told.seconds == pytest.approx(sum(columns[f"time/{name}"].sum() for name in PARTS))
    assert told.rate == pytest.approx(2560 / told.seconds)


def test_a_training_ends_with_its_report(tmp_path):
    words = [
        "train",
        "CartPole-v1",
        "--total-steps",
        "512",
        "--num-envs",
        "2",
        "--rollout-steps",
        "64",
    ]
    command = [sys.executable, "-m", "envfleet", *words, "--name", "a", "--backend", "serial"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    page = check((tmp_path / "runs/CartPole-v1/a/report.html").read_text("utf-8"))
    assert "finished" in page.text["header"]
    assert "Return" in page.text["h3"]
    assert "serial" in page.text["table"]  # the engine plan
