# SPDX-License-Identifier: Apache-2.0
"""What tests of the package share: devices, contexts on them, and the repository's test data."""
from __future__ import annotations

import gc
import os
import pathlib
from typing import Any, Callable, Iterator

import pytest

import tamis

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def devices() -> list[str]:
    """What the environment's TAMIS_DEVICE names, or the first usable device of each backend."""
    named = os.environ.get("TAMIS_DEVICE")
    if named:
        return [named]
    return list(dict.fromkeys(device.backend for device in tamis.devices() if device.usable))


DEVICES = devices()


def pytest_unconfigure() -> None:
    """What is left in circles ends here: stores do not at the interpreter's end, and a sanitizer would see
    leaks."""
    gc.collect()


@pytest.fixture(scope="session")
def data() -> pathlib.Path:
    """The repository's folder of test data."""
    return REPOSITORY / "tests" / "data"


@pytest.fixture(scope="session", params=DEVICES)
def context(request: pytest.FixtureRequest) -> Iterator[tamis.Context]:
    """A context that tests share, on each device."""
    with tamis.Context(request.param) as made:
        yield made


@pytest.fixture(params=DEVICES)
def contexts(request: pytest.FixtureRequest) -> Iterator[Callable[..., tamis.Context]]:
    """Makes contexts of a test's own, on each device; they are closed behind it."""
    made: list[tamis.Context] = []

    def make(**params: Any) -> tamis.Context:
        made.append(tamis.Context(request.param, **params))
        return made[-1]

    yield make
    for one in made:
        one.close()
