"""The leak check around every test, and the marks of the conformance tests."""

from __future__ import annotations

import contextlib
import gc
import importlib

import pytest

from envfleet.testing import assert_no_leaks


def pytest_addoption(parser):
    parser.addoption(
        "--engines",
        choices=("ours", "gymnasium", "all"),
        default="ours",
        help="run the conformance tests on envfleet's engines, on Gymnasium's own, or on both",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "engines(*kinds): which kinds of engine a test is about")
    config.addinivalue_line("markers", "differs(row, on=...): a row of docs/differences.md")


def pytest_collection_modifyitems(items):
    # A test about other engines than the chosen ones was given no engine at all.
    items[:] = [item for item in items if isinstance(_engine_of(item), str)]
    for item in items:
        engine = _engine_of(item)
        if not engine.startswith("gymnasium-"):
            continue
        item.add_marker(pytest.mark.filterwarnings("ignore"))  # it tells of failed envs that way
        for mark in item.iter_markers("differs"):
            if engine.split("-")[1] in mark.kwargs.get("on", ("sync", "async")):
                item.add_marker(pytest.mark.xfail(strict=True, reason=mark.args[0]))


def _engine_of(item):
    if item.module.__name__ != "test_conformance" or not hasattr(item, "callspec"):
        return ""
    return item.callspec.params.get("engine", "")


@pytest.fixture(scope="session", autouse=True)
def _warm_up():
    """Start what multiprocessing starts once per process, so that it is not counted as a leak."""
    import multiprocessing as mp  # noqa: PLC0415
    from multiprocessing import forkserver, resource_tracker  # noqa: PLC0415

    resource_tracker.ensure_running()
    forkserver.ensure_running()
    process = mp.get_context("forkserver").Process(target=int)
    process.start()
    process.join()
    mp.Array("d", 1)  # the heap that Gymnasium's shared memory comes from
    # What is imported stays: looking through it in every gc.collect() would take most of the time.
    for name in ("torch", "cv2", "moviepy", "gymnasium.wrappers.vector"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_leaks(_warm_up, request):
    """Nothing that a test starts or opens outlives it; Gymnasium's own engines are not asked."""
    if _engine_of(request.node).startswith("gymnasium-"):
        yield
        return
    with assert_no_leaks():
        yield
