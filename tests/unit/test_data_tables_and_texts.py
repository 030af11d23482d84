"""The table of flights and the text of the Bible: what a sample is, and files that are refused."""

import datetime
from pathlib import Path

import numpy as np
import pytest

from outvote.data.array_dataset import ArrayDataset
from outvote.data.catalog import DATASETS
from outvote.data.faults import DamagedDataError
from outvote.data.flights import CARRIERS, NUM_FEATURES, ORIGINS, read_flights
from outvote.data.kjv import CHARACTERS, LENGTH, decode_text, read_chapters, read_kjv
from outvote.data.loader import load_entry
from outvote.data.lzw import decode_lzw
from sample_files import (
    CANCELLED,
    TITLES,
    encode_lzw,
    flight_rows,
    packed_text,
    sha256,
    small_flights,
    small_kjv,
    verses,
    write_flights,
    write_kjv,
)

# The first bytes of the first window of the package's own file.
ORIGINAL = bytes.fromhex("48deb0c90342481a316ccab00011a40e1d346fe4a4d153860c08144bd2b8390342499836")


def read_rows(folder, rows, **options):
    return read_flights(folder, sha256=write_flights(folder, rows), **options)


def both(dataset):
    """All samples with their targets and groups, in the order of the table."""
    inputs = np.concatenate([dataset.train_inputs[0], dataset.test_inputs[0]])
    targets = np.concatenate([dataset.train_targets, dataset.test_targets])
    return inputs, targets, np.concatenate([dataset.train_groups, dataset.test_groups])


def text_of(tokens):
    return "".join(CHARACTERS[token] for token in tokens)


def test_a_table_is_split_and_grouped_by_destination(tmp_path):
    dataset = load_entry(small_flights(tmp_path), tmp_path)
    assert isinstance(dataset, ArrayDataset)
    assert dataset.source.endswith(str(tmp_path))
    assert (len(dataset.train_targets), len(dataset.test_targets)) == (240, 60)
    assert dataset.shape == DATASETS["flights"].shape == (NUM_FEATURES,)
    assert dataset.group_names == ("ATL", "BOS", "ORD", "SFO")
    inputs, targets, groups = both(dataset)
    assert np.bincount(groups).tolist() == [75] * 4
    assert inputs.dtype == np.float32
    assert set(targets) == {0, 1, 2}
    again = load_entry(small_flights(tmp_path), tmp_path)
    assert np.array_equal(again.test_inputs[0], dataset.test_inputs[0])


def test_numbers_have_mean_0_and_deviation_1_on_the_training_flights(tmp_path):
    dataset = load_entry(small_flights(tmp_path), tmp_path)
    numbers = dataset.train_inputs[0][:, :4]
    assert np.allclose(numbers.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(numbers.std(axis=0), 1, atol=1e-5)
    assert not np.allclose(dataset.test_inputs[0][:, :4].mean(axis=0), 0, atol=1e-5)


def test_categories_are_one_hot_in_a_fixed_order(tmp_path):
    row = "2013,3,9,605,600,2,812,759,{delay},DL,7,N7,LGA,ATL,100,762,6,0,2013-03-09T11:00:00Z"
    dataset = read_rows(tmp_path, [row.format(delay=k) for k in range(10)], least_flights=1)
    inputs, _, _ = both(dataset)
    # A column that does not differ is 0.
    assert np.array_equal(inputs[0, :4], np.zeros(4))
    quarter = 2 * np.pi * 360 / 1440, 2 * np.pi * 479 / 1440
    expected = [f(angle) for angle in quarter for f in (np.sin, np.cos)]
    assert np.allclose(inputs[0, 4:8], expected, atol=1e-6)
    month, weekday, carrier, origin = np.split(inputs[0, 8:], [12, 19, 35])
    assert month.argmax() == 2
    assert weekday.argmax() == datetime.date(2013, 3, 9).weekday() == 5
    assert CARRIERS[carrier.argmax()] == "DL"
    assert ORIGINS[origin.argmax()] == "LGA"
    assert [part.sum() for part in (month, weekday, carrier, origin)] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("delay", "expected"), [(-40, 0), (-15, 0), (-14, 1), (0, 1), (14, 1), (15, 2), (90, 2)]
)
def test_a_flight_is_late_from_15_minutes_on(tmp_path, delay, expected):
    row = f"2013,3,9,605,600,2,812,759,{delay},DL,7,N7,LGA,ATL,100,762,6,0,2013-03-09T11:00:00Z"
    _, targets, _ = both(read_rows(tmp_path, [row] * 5, least_flights=1))
    assert set(targets) == {expected}


def test_flights_without_an_arrival_and_to_small_destinations_are_left_out(tmp_path):
    rows = [*flight_rows(40), CANCELLED, flight_rows(1, ("LEX",))[0]]
    dataset = read_rows(tmp_path, rows, least_flights=2)
    assert dataset.group_names == ("ATL", "BOS", "ORD", "SFO")
    assert len(dataset.train_targets) + len(dataset.test_targets) == 40


def test_a_table_that_is_not_the_original_is_refused(tmp_path):
    write_flights(tmp_path, flight_rows())
    with pytest.raises(DamagedDataError, match=r"flights.csv in .* is not the original"):
        read_flights(tmp_path)
    (tmp_path / "flights.csv.zip").write_bytes(b"no zip file")
    with pytest.raises(DamagedDataError, match=r"no zip file with flights\.csv"):
        read_flights(tmp_path)


@pytest.mark.parametrize(
    ("titles", "rows", "message"),
    [
        (TITLES.replace("carrier", "airline"), flight_rows(9), "has no column carrier"),
        (TITLES, [*flight_rows(9), "2013,1,1"], "is no table"),
        (
            TITLES,
            [CANCELLED.replace("NA", "7").replace("LGA", "SFB")] * 9,
            "'SFB', which is none of",
        ),
    ],
)
def test_a_table_of_another_kind_is_refused(tmp_path, titles, rows, message):
    found = write_flights(tmp_path, rows, titles)
    with pytest.raises(DamagedDataError, match=message):
        read_flights(tmp_path, sha256=found, least_flights=1)


def test_samples_are_the_characters_of_a_chapter_and_targets_the_next_ones(tmp_path):
    dataset = load_entry(small_kjv(tmp_path), tmp_path)
    assert isinstance(dataset, ArrayDataset)
    assert dataset.shape == DATASETS["kjv"].shape == (LENGTH,)
    assert dataset.num_classes == DATASETS["kjv"].num_classes == len(CHARACTERS) == 63
    assert dataset.train_labels is None
    inputs, targets = dataset.train_inputs[0], dataset.train_targets
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    words = "And God saw the light that it was good: and God divided it"
    (first,) = {text_of(row) for row in inputs[dataset.train_groups == 2][:1]}
    assert first == f"{words} a.\n{words}"[:LENGTH]
    # A window begins where the one before ends.
    jude = inputs[dataset.train_groups == 2]
    assert targets[dataset.train_groups == 2][0, -1] == jude[1, 0]


def test_a_tenth_of_the_chapters_of_every_book_is_for_tests(tmp_path):
    dataset = load_entry(small_kjv(tmp_path), tmp_path)
    assert dataset.group_names == ("Ge", "1Sm", "Jude")
    assert np.unique(dataset.train_groups).tolist() == [0, 1, 2]
    assert np.unique(dataset.test_groups).tolist() == [0, 1]
    counts = [
        np.bincount(each, minlength=3) for each in (dataset.train_groups, dataset.test_groups)
    ]
    assert counts[0][0] > 5 * counts[1][0] > 0
    again = load_entry(small_kjv(tmp_path), tmp_path)
    assert np.array_equal(again.test_inputs[0], dataset.test_inputs[0])


def test_no_window_reaches_into_another_chapter():
    chapters = read_chapters("title\nGe1:1 One.\nGe1:2 Two.\nGe2:1 Three.\nEx1:1 Four.\n", "it")
    assert [tuple(each) for each in chapters] == [
        ("Ge", "One.\nTwo.\n"),
        ("Ge", "Three.\n"),
        ("Ex", "Four.\n"),
    ]


def test_the_beginning_of_the_original_is_decoded():
    assert decode_lzw(ORIGINAL, "it") == b"Holy Bible, Authorized (King Jam"


@pytest.mark.parametrize("clear_at", [None, 3, 300, 700])
@pytest.mark.parametrize("size", [0, 1, 2, 255, 300, 3000, 40_000])
def test_what_is_compressed_is_decoded(size, clear_at):
    random = np.random.default_rng(size)
    content = random.choice(np.frombuffer(b"abc ABC\n", dtype=np.uint8), size).tobytes()
    packed = encode_lzw(content, clear_at) if content else b""
    assert decode_lzw(packed, "it") == content


def test_a_text_of_several_windows_is_put_together():
    text = verses()
    assert decode_text(packed_text(text, 100), "it").decode() == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"ZIP!" + content[4:], "does not begin with EC02"),
        (lambda content: content[:90], "too short"),
        (lambda content: content[:-5], "announces windows"),
        (lambda content: content.replace(b"\x1f\x9d\x90", b"\x1f\x9d\x00", 1), "announces"),
        (lambda content: content[:84] + b"\0\0\0\7" + content[88:], "do not hold 7 bytes"),
        (lambda content: content[:-300] + b"\xff" * 300, "code|not the original"),
    ],
)
def test_a_damaged_text_is_refused(tmp_path, change, message):
    right = write_kjv(tmp_path, verses())
    path = Path(tmp_path / "bible.data")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DamagedDataError, match=message) as caught:
        read_kjv(tmp_path, sha256=right)
    assert "fetch it again" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no verse at all", "no verse: 'no verse at all'"),
        ("Ge1:1 caf\xe9", "unknown character 'é'"),
    ],
)
def test_a_line_of_another_kind_is_refused(tmp_path, line, message):
    text = f"title\n{line}\n"
    write_kjv(tmp_path, text)
    with pytest.raises(DamagedDataError, match=message):
        read_kjv(tmp_path, sha256=sha256(text.encode("latin-1")))


def test_groups_of_test_samples_must_be_as_many():
    part = np.zeros((2, 3), dtype=np.float32), np.array([0, 1])
    with pytest.raises(ValueError, match="each of the 2 test samples, got 1"):
        ArrayDataset(
            name="it",
            train_inputs=part[:1],
            train_targets=part[1],
            test_inputs=part[:1],
            test_targets=part[1],
            num_classes=2,
            source="a test",
            test_groups=np.array([0]),
        )


@pytest.mark.parametrize(
    ("shape", "is_last", "expected"),
    [
        ((2, 3, 8, 9), False, (8, 9, 3)),
        ((2, 8, 9, 3), True, (8, 9, 3)),
        ((2, 5), False, (5,)),
        ((2, 5, 4), False, (5, 4)),
    ],
)
def test_the_shape_of_images_has_the_channels_last(shape, is_last, expected):
    values = np.zeros(shape, dtype=np.float32)
    dataset = ArrayDataset(
        name="it",
        train_inputs=(values,),
        train_targets=np.array([0, 1]),
        test_inputs=(values,),
        test_targets=np.array([0, 1]),
        num_classes=2,
        source="a test",
        is_channels_last=is_last,
    )
    assert dataset.shape == expected
