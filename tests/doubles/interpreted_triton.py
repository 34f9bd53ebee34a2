"""Triton kernels on the CPU: its interpreter runs them with numpy where there is no GPU (see conftest.py)."""

from __future__ import annotations

import importlib.util
import inspect
import os
from typing import Any

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")


def patch_interpreter() -> None:
    """Call before a kernel is run."""
    if not HAS_TRITON or os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor
    if original.__name__ == "with_item":
        return

    # Since numpy 2.4 int() refuses the arrays of one element that Triton keeps its scalars in. From 3.6 on it
    # notes what it sets, to take it away again.
    def with_item(tensor: Any, *scope: Any) -> None:
        original(tensor, *scope)
        set_attribute = scope[0].set_attr if scope else setattr
        set_attribute(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = with_item
    _look_for_builtins_once(interpreter)


def _look_for_builtins_once(interpreter: Any) -> None:
    """Each call of a kernel, and each call of a function in one, has the builtins of the language replaced.
    Finding them among all names of its modules takes up to half of such a call."""
    from triton.language.core import is_builtin

    found: dict[Any, list[str]] = {}

    def patch(module: Any, builder: Any, *scope: Any) -> None:
        if module not in found:
            found[module] = [name for name, member in inspect.getmembers(module) if is_builtin(member)]
        for name in found[module]:
            if is_builtin(member := getattr(module, name)):  # not while a kernel around it is run
                interpreter._patch_attr(module, name, member, builder, *scope)

    interpreter._patch_builtin = patch
