"""How the tests are run: how many at once, on which engines, and the leak check around them."""

from __future__ import annotations

import gc
import importlib.util
import io
import os
from collections.abc import Iterator

import pytest

# OpenBLAS starts its threads anew after every fork, and they spin for 0.1 s: a third of the suite's
# work. It reads the variable once; the programs that tests start have as many threads as ever.
_before = os.environ.pop("OPENBLAS_NUM_THREADS", None)
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np  # noqa: E402, F401

del os.environ["OPENBLAS_NUM_THREADS"]
if _before is not None:
    os.environ["OPENBLAS_NUM_THREADS"] = _before

from clusters import local_cluster  # noqa: E402
from envfleet.testing import assert_no_leaks  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--engines",
        choices=("ours", "gymnasium", "ray", "all"),
        default="ours",
        help="conformance tests on envfleet's engines and all other tests; only the conformance "
        "tests on Gymnasium's own engines, or on the Ray engine; or all of them",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engines(*kinds): which kinds of engine a test is about")
    config.addinivalue_line("markers", "differs(row, on=...): a row of docs/differences.md")


def pytest_xdist_auto_num_workers() -> int:
    """For ``-n auto``: tests wait for processes half of the time."""
    return 2 * len(os.sched_getaffinity(0))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A test about other engines than the chosen ones was given no engine at all.
    items[:] = [item for item in items if isinstance(_engine_of(item), str)]
    if config.getoption("--engines") == "gymnasium":
        items[:] = [item for item in items if _is_on_gymnasium(item)]
    if config.getoption("--engines") == "ray":
        items[:] = [item for item in items if _engine_of(item) == "ray"]
    for item in filter(_is_on_gymnasium, items):
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # it tells of failed envs that way
        for mark in item.iter_markers("differs"):
            if str(_engine_of(item)).split("-")[1] in mark.kwargs.get("on", ("sync", "async")):
                item.add_marker(pytest.mark.xfail(strict=True, reason=mark.args[0]))


def _engine_of(item: pytest.Item) -> object:
    """The name of the engine that a conformance test runs on; "" for all other tests."""
    if not isinstance(item, pytest.Function) or item.module.__name__ != "test_conformance":
        return ""
    return item.callspec.params.get("engine", "") if hasattr(item, "callspec") else ""


def _is_on_gymnasium(item: pytest.Item) -> bool:
    return str(_engine_of(item)).startswith("gymnasium-")


@pytest.fixture(scope="session", autouse=True)
def _warm_up() -> None:
    """Start and open what libraries keep for good, so that it is not counted as a leak."""
    import multiprocessing as mp  # noqa: PLC0415
    from multiprocessing import forkserver, resource_tracker  # noqa: PLC0415

    resource_tracker.ensure_running()
    forkserver.ensure_running()
    process = mp.get_context("forkserver").Process(target=int)
    process.start()
    process.join()
    mp.Array("d", 1)  # the heap that Gymnasium's shared memory comes from
    if importlib.util.find_spec("matplotlib"):
        from matplotlib.figure import Figure  # noqa: PLC0415

        figure = Figure()
        figure.text(0, 0, "a")
        figure.savefig(io.BytesIO())  # the files of its fonts stay open


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A Ray of two CPUs, the suite's own; what else of Ray there is on the machine is left alone.

    To be asked for by the module (``usefixtures``), so that it is there before the leak check.
    """
    with local_cluster():
        yield


@pytest.fixture(autouse=True)
def _no_leaks(_warm_up: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing that a test starts or opens outlives it; Gymnasium's own engines are not asked."""
    if _is_on_gymnasium(request.node) or request.node.get_closest_marker("pure"):
        yield
        return
    if _engine_of(request.node) == "ray":
        request.getfixturevalue("local_ray")
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster")  # a node that it adds outlives the test
    # What is here now stays: looking through it in every gc.collect() would take most of the time.
    gc.collect()
    gc.freeze()
    with assert_no_leaks():
        yield
