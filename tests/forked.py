"""A process of its own for what needs one but no fresh start: a fork of this one, which has imported everything."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any


def forked(function: Callable[..., Any], *arguments: Any) -> str:
    """What the function prints in a process of its own; fails with that unless it returns there."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        with warnings.catch_warnings():
            # of threads, which exist in this process alone: the child takes no lock of theirs
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            _be_child(said, function, arguments)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        text = said.read()
    assert status == 0, text
    return text


def _be_child(said: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Leave the process at once, without the parent's clean-up."""
    status = 1
    try:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        sys.stdout = sys.stderr = said
        function(*arguments)
        status = 0
    except BaseException:  # whatever it is, it is the parent's to tell
        traceback.print_exc()
    finally:
        said.flush()
        os._exit(status)
