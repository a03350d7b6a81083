import pytest

from labkernels.records import schema, store


def test_rows_come_back_as_they_were_written(tmp_path, row):
    path = tmp_path / "run.csv"
    note = {**row, "metric": "refused", "note": 'group 16: "unsupported", they say'}
    assert store.append(path, [row]) == 1
    assert store.append(path, [note, row]) == 2
    assert store.read(path) == [row, note, row]


def test_every_float_keeps_its_bits(tmp_path, row):
    path = tmp_path / "run.csv"
    store.append(path, [{**row, "value": 0.1 + 0.2}])
    assert store.read(path)[0]["value"] == 0.1 + 0.2


def test_one_bad_row_writes_nothing(tmp_path, row):
    path = tmp_path / "run.csv"
    with pytest.raises(ValueError, match="value is nan"):
        store.append(path, [row, {**row, "value": float("nan")}])
    assert not path.exists()
    store.append(path, [row])
    with pytest.raises(ValueError, match="missing"):
        store.replace(path, [{**row, "unit": ""}])
    assert store.read(path) == [row]


def test_a_file_of_another_table_is_left_alone(tmp_path, row):
    path = tmp_path / "run.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"has columns \['a', 'b'\]"):
        store.append(path, [row])
    assert path.read_text() == "a,b\n1,2\n"


def test_a_damaged_line_is_named(tmp_path, row):
    path = tmp_path / "run.csv"
    store.append(path, [row, row])
    path.write_text(path.read_text().replace("0.000439", "nan", 1))
    with pytest.raises(ValueError, match=r"run.csv, line 2: value is 'nan'"):
        store.read(path)


def test_newest_and_select(row):
    later = {**row, "started_utc": "2026-12-02T00:00:00Z", "dtype": "fp16"}
    assert store.runs([row, later]) == ["2026-12-02T00:00:00Z", row["started_utc"]]
    assert store.newest([row, later, row]) == [later]
    assert store.newest([]) == []
    assert store.select([row, later], {"dtype": "fp16", "batch": 57}) == [later]


def test_every_committed_table_is_valid():
    for path in sorted(store.DATA_DIR.glob("*.csv")):
        header = tuple(path.read_text(encoding="utf-8").split("\n", 1)[0].split(","))
        if "started_utc" in header:
            assert schema.table_of(header)
            assert store.read(path)
