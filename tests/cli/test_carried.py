"""Rows that another machine recorded with --out come into the data with their duration."""

from labkernels import cli, experiments
from labkernels.experiments import durations
from labkernels.experiments.experiment import Options
from labkernels.experiments.performance import register_growth
from labkernels.records import datapackage, store

NAME, TABLE = "register_growth", register_growth.DATA_FILE
OTHER = "host_time"


def gather(*words):
    return cli.main(["record", "--gather", *map(str, words)])


def recorded(folder, name, cells=None):
    """Fill a folder as a recording does that comes to its end, and return its rows."""
    experiment = experiments.find(name)
    (table,) = experiment.tables
    rows = store.read(table.partition("/")[2].partition(".")[0])[:5]
    store.append(folder / table, rows, experiment.tables[table])
    cells = cells or len(list(experiment.cells(Options())))
    durations.write(folder, durations.read()[0] | rows[0] | {"experiment": name}, cells, 12.5)
    return rows


def test_rows_and_their_duration_are_put_once(tmp_path, capsys):
    carried, out = tmp_path / "carried", tmp_path / "data"
    rows = recorded(carried, NAME)
    for said in (f"{NAME}: {len(rows)} rows\n", ""):
        assert gather(carried, "--out", out) == 0
        assert capsys.readouterr().out == said
        assert store.read(out / TABLE) == rows
        assert durations.read(out) == durations.read(carried)
        assert datapackage.differences(out) == []


def test_a_folder_of_two_experiments_gives_each_its_own_rows(tmp_path, capsys):
    carried, out = tmp_path / "carried", tmp_path / "data"
    found = {name: recorded(carried, name) for name in (NAME, OTHER)}
    datapackage.write(carried)
    (table,) = experiments.find(OTHER).tables
    store.append(out / table, found[OTHER][:2], experiments.find(OTHER).tables[table])
    assert gather(carried, "--out", out) == 0
    lines = {f"{name}: {len(rows)} rows" for name, rows in found.items()}
    assert set(capsys.readouterr().out.splitlines()) == lines
    assert [row["experiment"] for row in durations.read(out)].count(NAME) == 1
    assert store.read(out / TABLE) == found[NAME]
    assert store.read(out / table) == found[OTHER][:2] + found[OTHER]


def test_a_recording_that_did_not_come_to_its_end_is_refused(tmp_path, capsys):
    rows = store.read(NAME)[:5]
    store.append(tmp_path / "carried" / TABLE, rows, experiments.find(NAME).tables[TABLE])
    assert gather(tmp_path / "carried", "--out", tmp_path / "data") == 2
    assert "`record --out` to its end" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_part_stays_out_of_a_table_that_must_be_whole(tmp_path, monkeypatch, capsys):
    assert register_growth.EXPERIMENT.whole
    out = tmp_path / "data"
    recorded(tmp_path / "carried", NAME, cells=1)
    monkeypatch.setattr(store, "DATA_DIR", out)
    assert gather(tmp_path / "carried", "--out", out) == 2
    assert "must be whole" in capsys.readouterr().err
    assert not out.exists()
