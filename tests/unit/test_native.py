"""The C kernels do what plain torch does, on every level that this processor has."""

import ctypes
import importlib.util
import os
import pkgutil
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from math import fsum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

import ops_rules
import outvote as ov
from outvote.ops import door, eigen, groups, native, order
from outvote.ops.groups import NUM_ROUNDS, KeyedOrder, draw_order
from outvote.rules.groups import balanced_sizes
from outvote.seeding import RandomStream

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
LEVELS = [name for name in ("0", "3", "4") if int(name) <= int(native.level() or -1)]
needs_kernels = pytest.mark.skipif(not LEVELS, reason="outvote was installed without a C compiler")
NATIVE = [name for name, rows in door.BACKENDS.items() if any(row.is_native for row in rows)]


@pytest.fixture(params=LEVELS)
def level(request, monkeypatch):
    """Each level in turn."""
    monkeypatch.setattr(native, "level", lambda: request.param)
    native.function.cache_clear()
    yield request.param
    native.function.cache_clear()


def without(work):
    """Call without kernels."""
    with mock.patch.dict(door.BACKENDS, dict.fromkeys(door.BACKENDS, ())):
        return work()


def rows_of(runs, num_clients, dim, seed=0):
    return torch.randn(runs, num_clients, dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.skipif(
    os.environ.get("OUTVOTE_TEST_DEVICE", "cpu") != "cpu", reason="run from a copy of the source"
)
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.skipif(os.environ.get("OUTVOTE_NATIVE") == "0", reason="they are switched off")
def test_where_there_is_a_compiler_the_kernels_are_built():
    assert native.level() is not None, "install outvote again: touch hatch_build.py; make venv"


def test_libraries_are_not_taken_for_modules():
    assert {m.name for m in pkgutil.iter_modules([str(native.FOLDER)]) if not m.ispkg} == {
        path.stem for path in native.FOLDER.glob("*.py") if path.stem != "__init__"
    }


@needs_kernels
@pytest.mark.parametrize("operation", NATIVE)
def test_every_level_is_the_plain_form(operation, level):
    """`test_ops` looks at the highest level alone."""
    case = ops_rules.CASES[operation]
    dtype = next(row for row in door.BACKENDS[operation] if row.is_native).dtypes[0]
    rounding = max(case.tolerance.values(), default=0)
    for make in case.families.values():
        found, plain = (
            way(lambda make=make: case.call(*make(torch.Generator().manual_seed(1), dtype)))
            for way in (lambda work: work(), without)
        )
        scale = float(plain.double().abs().max()) if isinstance(plain, torch.Tensor) else 1
        torch.testing.assert_close(found, plain, rtol=rounding, atol=rounding * scale)


@needs_kernels
def test_long_sums_are_not_rounded_in_float32(level):
    """A million equal numbers, added one by one in float32, are wrong in the fourth digit."""
    rows = torch.full((1, 2, 1 << 20), 1.1)
    rows[:, 1] = 0.0
    found = native.pair_sums(rows, [draw_order(1 << 20, 0)], balanced_sizes(1 << 20, 1))
    exact = float(np.float64(np.float32(1.1)) ** 2) * (1 << 20)
    assert float(found[0, 0, 0, 1]) == pytest.approx(exact, rel=1e-10)


@needs_kernels
@pytest.mark.parametrize("num_groups", [2_500, 3_001])
def test_groups_of_positions_beyond_16_million_are_found(num_groups, level):
    """There float32 has gaps, and the quotient of a position and a width is rounded."""
    size = 2**31 - 2**16
    given = rows_of(1, 2, 3_000), [KeyedOrder(size, 3)], balanced_sizes(size, num_groups)
    found, plain = (
        way(lambda: groups.pair_sums(*given, start=size // 2))
        for way in (lambda work: work(), without)
    )
    torch.testing.assert_close(found, plain, rtol=1e-12, atol=0)


def selected(far, num_selected, num_byzantine):
    """Krum's choice among those left, again and again, with exact sums."""
    left = list(range(len(far)))
    for _ in range(num_selected):
        num_neighbours = max(1, len(left) - num_byzantine - 2)
        scores = [fsum(sorted(far[i][j] for j in left if j != i)[:num_neighbours]) for i in left]
        left.pop(scores.index(min(scores)))
    return sorted(set(range(len(far))) - set(left))


COLLUSIONS = {
    "nobody": lambda points, f: points,
    "copies": lambda points, f: points.index_copy(0, torch.arange(f), points[:1].repeat(f, 1)),
    "long": lambda points, f: torch.cat([1e12 * points[:f], points[f:]]),
    "longer and longer": lambda points, f: points * torch.logspace(0, 12, len(points))[:, None],
    "all equal": lambda points, f: torch.zeros_like(points),
}


@needs_kernels
@pytest.mark.parametrize("collusion", COLLUSIONS)
@pytest.mark.parametrize("num_clients", [3, 4, 7, 8, 16, 23, 64, 65])
def test_bulyan_selects_as_with_exact_sums(num_clients, collusion, level):
    for num_byzantine in {1, max(1, (num_clients - 3) // 4), (num_clients - 1) // 2}:
        points = rows_of(3, num_clients, 6).double()
        points = torch.stack([COLLUSIONS[collusion](each, num_byzantine) for each in points])
        far = (points.unsqueeze(-2) - points.unsqueeze(-3)).square().sum(dim=-1)
        if collusion != "nobody":
            # Distances of copies are equal, or differ by more than the last bits.
            far = far.float()
        num = num_clients - 2 * num_byzantine
        found = order.select_one_by_one(far, num, num_byzantine)
        wanted = [selected(each, num, num_byzantine) for each in far.double().tolist()]
        assert [each.nonzero().flatten().tolist() for each in found] == wanted


SPECTRA = {
    "random": lambda points: points,
    "one stands out": lambda points: torch.cat([100 * points[:, :1], points[:, 1:]], dim=1),
    "copies": lambda points: torch.cat([points[:, :1].expand(-1, 3, -1), points[:, 3:]], dim=1),
    "few directions": lambda points: points[..., :2],
    "ever shorter": lambda points: points * torch.logspace(0, -12, points.shape[1])[:, None],
    "one direction": lambda points: points * torch.eye(points.shape[1])[:, :1],
    "nothing": torch.zeros_like,
}


@needs_kernels
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("num_rows", [3, 4, 8, 9, 17, 33, 50, 130])
def test_the_leading_direction_is_that_of_a_decomposition(num_rows, spectrum, level):
    points = SPECTRA[spectrum](rows_of(4, num_rows, 3 * num_rows).double())
    matrices = points @ points.mT
    matrices /= matrices.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1e-300)
    start = RandomStream((0, 1, 2, 3)).signed_sizes(num_rows, CPU)
    found = native.leading_projections(matrices.view(2, 2, num_rows, num_rows), start)
    values, vectors = torch.linalg.eigh(matrices)
    top = values[:, -1:].clamp(min=0)
    wanted = top * vectors[..., -1].square()
    assert found.shape == (2, 2, num_rows)
    # The directions of two close values mix: 1e-12 of the residual, divided by their distance.
    gap = (top - values[:, -2:-1]).clamp(min=1e-300)
    allowed = 1e-13 * top + (4e-12 * top * (top / gap)).clamp(max=1e-6)
    assert bool(((found.view_as(wanted) - wanted).abs() <= allowed).all())


@needs_kernels
@pytest.mark.parametrize("num_rows", [100, 200, 400])
def test_a_top_value_just_above_many_others_is_found(num_rows, level):
    """The steps from above are short there: of 400 rows, 60 of them did not reach it."""
    generator = torch.Generator().manual_seed(num_rows)
    axes = torch.linalg.qr(rows_of(1, num_rows, num_rows)[0].double())[0]
    for power in (1.0, 2.16, 3.5):
        near = torch.rand(3 * num_rows // 5, generator=generator, dtype=torch.float64) ** power
        far = 0.44 * torch.rand(num_rows - 1 - len(near), generator=generator, dtype=torch.float64)
        values = torch.cat([torch.ones(1).double(), 1 - 4.4e-5 - 6.8e-4 * near, far])
        matrix = axes * values @ axes.T
        start = RandomStream((num_rows,)).signed_sizes(num_rows, CPU)
        found = native.leading_projections((matrix + matrix.T)[None] / 2, start)[0]
        torch.testing.assert_close(found, axes[:, 0].square(), rtol=0, atol=1e-9)


@needs_kernels
def test_of_equal_values_the_direction_nearest_to_the_start_is_taken(level):
    """Another direction of their space would be as right; but it is the same in every way."""
    axes = torch.linalg.qr(rows_of(1, 20, 20)[0].double())[0]
    values = torch.tensor([1.0] * 3 + [0.4] * 17).double()
    matrix, one = (axes * values @ axes.T)[None], torch.ones(1, 1).double()
    for matrices in (matrix, torch.eye(6).double()[None]):
        given = matrices, one, RandomStream((0,))
        found = eigen.leading_projections(*given)
        assert float(found.sum()) == pytest.approx(1, abs=1e-12)
        plain = without(lambda given=given: eigen.leading_projections(*given))
        torch.testing.assert_close(found, plain, rtol=1e-10, atol=0)


@needs_kernels
@pytest.mark.parametrize("num_clients", [4, 5, 8, 16])
def test_no_direction_of_small_whole_numbers_is_overlooked(num_clients, level):
    """Numbers that begin alike in every call had no part in some of these directions."""
    points = torch.randint(-1, 2, (2_000, num_clients, 1), generator=torch.Generator()).double()
    points -= points.mean(dim=-2, keepdim=True)
    start = RandomStream(tuple(range(2_000))).signed_sizes(num_clients, CPU)
    found = native.leading_projections(points @ points.mT, start)
    torch.testing.assert_close(found, points.square().squeeze(-1), rtol=1e-10, atol=1e-12)


@needs_kernels
def test_a_direction_can_be_hidden_from_one_start_only(level):
    """Who knows the numbers that are begun with can hide from them; each seed has others."""
    starts = RandomStream((0, 1)).signed_sizes(20, CPU)
    direction = (
        torch.randn(20, generator=torch.Generator().manual_seed(0)).double().sign() / 20**0.5
    )
    # Its diagonal is constant, so that all rows begin with the same weight.
    matrix = 0.5 * torch.outer(direction, direction) + 0.5 * torch.eye(20)
    known = starts[0] - direction * (starts[0] @ direction)
    overlooked, found = native.leading_projections(
        torch.stack([matrix, matrix]), torch.stack([known, starts[1]])
    )
    assert not torch.allclose(overlooked, direction.square())
    torch.testing.assert_close(found, direction.square())


def test_dnc_drops_the_farthest_of_whole_numbers():
    rows = [[0.0], [1.0], [1.0], [1.0], [-2.0], [1.0], [-1.0], [-1.0]]
    for repeats in (1, 1_000):
        verdict = ov.DnC().inspect([row * repeats for row in rows], num_byzantine=1, seed=0)
        assert verdict.dropped == [4]
        wanted = [repeats * row[0] ** 2 for row in rows]
        np.testing.assert_allclose(verdict.scores, wanted, rtol=1e-9, atol=1e-9)


def test_iterations_of_dnc_on_all_coordinates_round_alike():
    """Copies but for rounding: which of them is kept must not differ between iterations."""
    once, twice = ov.DnC(removal_factor=1.5), ov.DnC(removal_factor=1.5, num_iterations=2)
    for seed in range(40):
        rows = np.random.default_rng(seed).normal(size=(5, 4))
        rows[[0, 2]] = rows[4] + 1e-14
        first, both = (rule.inspect(rows, num_byzantine=2, seed=seed) for rule in (once, twice))
        assert both.kept == first.kept
        np.testing.assert_array_equal(both.scores, 2 * first.scores)


def tied(num_clients):
    """Some are equal, one is not finite, and some are close to the mean of the others."""
    rows = rows_of(1, num_clients, 12_007)[0]
    rows[:2] = rows[2]
    rows[3:5] = rows[5:].mean(0) * (1 + 1e-6 * torch.arange(2).unsqueeze(1))
    rows[-1, 100] = torch.nan
    return rows


ROWS = {
    "random": lambda num_clients: rows_of(1, num_clients, 12_007)[0],
    "tied": tied,
    **{
        str(scale): lambda num_clients, scale=scale: (
            rows_of(1, num_clients, 12_007)[0].clamp(-3, 3) / 3 * scale
        )
        for scale in (1e38, 1e19, 1e-19, 1e-38, 0.0)
    },
}
RULES = ["multi-krum", "krum", "bulyan", "median", "rfa(num_iterations=3)", "dnc", "rbtm", "meamed"]


@needs_kernels
@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("rule", [*RULES, *(f"gas({rule}, num_groups=70)" for rule in RULES)])
def test_rules_keep_the_same_clients_without_kernels(rule, kind):
    built = ov.make_rule(rule)
    for num_clients in (9, 10, 23) if kind == "random" else (12,):
        rows = ROWS[kind](num_clients)
        found, plain = (
            way(lambda rows=rows: built.inspect(rows, num_byzantine=1, seed=4))
            for way in (lambda work: work(), without)
        )
        assert found.kept == plain.kept
        assert found.rejected == plain.rejected
        # Which of two that are almost equal is nearer to all others, float32 does not know.
        rounding = 1e-6 * float(rows[:1].norm()) if kind == "tied" else 0
        np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-5, atol=rounding)
        assert bool(found.update.isfinite().all())
        torch.testing.assert_close(found.update, plain.update, rtol=1e-6, atol=0)


@needs_kernels
@pytest.mark.parametrize("rule", ["rfa", "mean", "nnm(rfa)", "geometric-median", "multi-krum"])
def test_a_long_client_takes_no_digits_from_the_others(rule):
    """Distances of float32 to a client a hundred million times as long hide those of the others."""
    gas = ov.make_rule(f"gas({rule}, num_groups=40)")
    for seed in range(3):
        rows = 0.01 * rows_of(1, 9, 20_000, seed)[0]
        rows[-2] *= 1.03
        rows[-1] *= 1e8

        def call(given, seed=seed):
            return gas.inspect(given, num_byzantine=2, seed=seed)

        found, exact = call(rows), call(rows.double())
        assert found.kept == exact.kept == without(lambda rows=rows: call(rows)).kept
        np.testing.assert_allclose(found.scores, exact.scores, rtol=3e-6)


@needs_kernels
@pytest.mark.parametrize("num_clients", [5, 12])
def test_threads_may_draw_one_order_at_once(num_clients):
    rows, gas = rows_of(1, num_clients, 300_007)[0], ov.make_rule("gas(krum, num_groups=70)")
    seeds = [seed for seed in range(10) for _ in range(4)]

    def call(seed):
        return gas.inspect(rows, num_byzantine=1, seed=seed).scores

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(call, seeds))
    for seed, scores in zip(seeds, together, strict=True):
        np.testing.assert_array_equal(scores, together[4 * seed])


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_the_default_dtype_of_the_caller_does_not_matter(dtype):
    rows, gas = rows_of(1, 12, 12_007)[0], ov.make_rule("gas(multi-krum, num_groups=70)")
    plain = gas.inspect(rows, num_byzantine=2, seed=0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        found = gas.inspect(rows, num_byzantine=2, seed=0)
    finally:
        torch.set_default_dtype(before)
    np.testing.assert_array_equal(found.scores, plain.scores)
    assert torch.equal(found.update, plain.update)


class TestLoading:
    """A library is used only if it is whole, of this machine and of this version."""

    @pytest.fixture(autouse=True)
    def _fresh(self):
        native.level.cache_clear()
        native._open.cache_clear()
        yield
        native.level.cache_clear()
        native._open.cache_clear()

    @needs_kernels
    def test_a_library_of_another_source_is_not_used(self, tmp_path, monkeypatch):
        for path in native.FOLDER.glob("native.*.so"):
            shutil.copy(path, tmp_path)
        text = (native.FOLDER / "native.c").read_text()
        monkeypatch.setattr(native, "FOLDER", tmp_path)
        (tmp_path / "native.c").write_text(text)
        assert native.level() == LEVELS[-1]
        native.level.cache_clear()
        native._open.cache_clear()
        (tmp_path / "native.c").write_text(text + "\n")
        assert native.level() is None

    def test_without_libraries_torch_does_it(self, tmp_path, monkeypatch):
        monkeypatch.setattr(native, "FOLDER", tmp_path)
        assert native.level() is None
        (tmp_path / "native.c").write_text("")
        (tmp_path / "native.0.so").write_bytes(b"no library")
        native._open.cache_clear()
        native.level.cache_clear()
        assert native.level() is None

    def test_a_variable_switches_them_off(self, monkeypatch):
        monkeypatch.setenv("OUTVOTE_NATIVE", "0")
        assert native.level() is None


def compiler_of(content, folder):
    """Return a program that is called as a compiler, and always makes the same file."""
    result, found = folder / "result", folder / "cc"
    result.write_bytes(content)
    found.write_text(f'#!/bin/sh\nfor last; do :; done\ncat "{result}" > "$last"\n')
    found.chmod(0o700)
    return found


class TestBuilding:
    """hatch_build.py, with what it is built on replaced."""

    @pytest.fixture
    def hook(self, monkeypatch):
        tags = ModuleType("packaging.tags")
        tags.platform_tags = lambda: ["manylinux_2_36_x86_64", "linux_x86_64"]
        monkeypatch.setitem(sys.modules, "packaging.tags", tags)
        names = ["hatchling", "builders", "hooks", "plugin", "interface"]
        for k in range(len(names)):
            module = ModuleType(".".join(names[: k + 1]))
            module.BuildHookInterface = object
            monkeypatch.setitem(sys.modules, module.__name__, module)
        spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setattr(module, "LEVELS", {"0": ()})
        monkeypatch.delenv("CC", raising=False)
        return module

    @pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
    def test_a_library_is_built_and_old_ones_go(self, hook, tmp_path):
        (tmp_path / "native.9.so").touch()
        warnings = []
        (built,) = hook.build(native.FOLDER / "native.c", tmp_path, warnings.append)
        assert [path.name for path in tmp_path.iterdir()] == [built.name] == ["native.0.so"]
        assert warnings == []
        assert ctypes.CDLL(str(built)).outvote_level() >= 0

    def test_without_a_compiler_it_warns(self, hook, tmp_path, monkeypatch):
        monkeypatch.setattr(hook.shutil, "which", lambda _: None)
        (tmp_path / "native.0.so").touch()
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert "no C compiler" in warnings[0]
        # Another installation of the same folder may use it.
        assert [path.name for path in tmp_path.iterdir()] == ["native.0.so"]

    @pytest.mark.parametrize("status", [0, 1])
    def test_output_of_a_compiler_may_be_of_any_encoding(self, hook, tmp_path, monkeypatch, status):
        compiler = tmp_path / "with a space" / "cc"
        compiler.parent.mkdir()
        compiler.write_text(f"#!/bin/sh\nprintf 'error: \\253' >&2\nexit {status}\n")
        compiler.chmod(0o700)
        monkeypatch.setattr(hook.shutil, "which", lambda _: str(compiler))
        monkeypatch.delenv("CC", raising=False)
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert ("error: \ufffd" if status else "No such file") in warnings[0]

    def test_what_cannot_be_written_is_no_error(self, hook, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise OSError(30, "Read-only file system")

        (tmp_path / "native.9.so").touch()
        monkeypatch.setattr(hook.Path, "unlink", refuse)
        monkeypatch.setattr(hook.Path, "replace", refuse)
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        if shutil.which("cc"):
            assert "Read-only file system" in warnings[0]

    def test_without_the_source_it_warns(self, hook, tmp_path):
        warnings = []
        assert hook.build(tmp_path / "native.c", tmp_path, warnings.append) == []
        if shutil.which("cc"):
            assert "No such file" in warnings[0]

    def test_a_library_for_another_processor_is_not_taken(self, hook, tmp_path, monkeypatch):
        folder = tmp_path / "kernels"
        folder.mkdir()
        working = [folder / f"native.{level}.so" for level in ("0", "3")]
        for path in working:
            path.write_text("of an installation that works")
        monkeypatch.setenv("CC", str(compiler_of(b"other", tmp_path)))
        warnings = []
        assert hook.build(native.FOLDER / "native.c", folder, warnings.append) == []
        assert "level 0" in warnings[0]
        assert sorted(folder.iterdir()) == working
        assert all(path.read_text() == "of an installation that works" for path in working)

    @pytest.mark.skipif(not hasattr(os, "ST_NOEXEC"), reason="of Linux")
    def test_where_nothing_is_executed_a_library_is_taken_as_it_is(
        self, hook, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(hook, "LEVELS", {"0": ()})
        monkeypatch.setenv("CC", str(compiler_of(b"other", tmp_path)))
        flags = SimpleNamespace(f_flag=os.ST_NOEXEC)
        monkeypatch.setattr(hook.os, "statvfs", lambda _: flags)
        (library,) = hook.build(native.FOLDER / "native.c", tmp_path, pytest.fail)
        assert library.read_bytes() == b"other"

    @pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
    def test_the_warning_is_the_error_of_the_compiler(self, hook, tmp_path):
        (tmp_path / "native.c").write_text("void f(void) {\n    g();\n    return 1 +;\n}\n")
        warnings = []
        assert hook.build(tmp_path / "native.c", tmp_path, warnings.append) == []
        assert "error: expected expression" in warnings[0]

    def test_a_variable_that_is_no_command_is_no_error(self, hook, tmp_path, monkeypatch):
        monkeypatch.setenv("CC", "gcc '")
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert 'CC is not a command, got "gcc \'"' in warnings[0]

    @pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
    def test_without_the_lowest_level_no_other_is_built(self, hook, tmp_path, monkeypatch):
        monkeypatch.setattr(hook, "LEVELS", {"3": (), "0": ("-no-such-flag",)})
        monkeypatch.setattr(hook.platform, "machine", lambda: "x86_64")
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert "level 0" in warnings[0]
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("compiler", ["false", "/no/such/program"])
    def test_a_compiler_that_fails_is_no_error(self, hook, compiler, tmp_path, monkeypatch):
        monkeypatch.setenv("CC", compiler)
        warnings = []
        assert hook.build(native.FOLDER / "native.c", tmp_path, warnings.append) == []
        assert "level 0" in warnings[0]
        assert list(tmp_path.iterdir()) == []


def test_the_numbers_of_the_two_languages_are_the_same():
    """What Python allocates is what C writes to."""
    text = (native.FOLDER / "native.c").read_text()
    for name in ("LINE", "HALF", "FOUR", "MOST_COPIED", "SQUARED", "GAP", "CENTRED", "SORTED"):
        assert f"    {name} = {getattr(native, name)},\n" in text, name
    assert "    NUM_ROUNDS = 6,\n" in text
    assert NUM_ROUNDS == 6
