"""Triton kernels on the CPU: its interpreter runs them with numpy where there is no GPU (see conftest.py)."""

from __future__ import annotations

import dataclasses
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
    _patch_language_once(interpreter)
    _find_array_types_once(interpreter)
    # Sums and products of integers are computed again in 64 bits, for a check left out without `debug`.
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_language_once(interpreter: Any) -> None:
    """Each launch of a kernel, and each call of a function in one, has the builtins of the language replaced.
    Finding them among all names of its modules takes up to half of a launch; in a call they are in place."""
    from triton.language.core import is_builtin

    found: dict[Any, list[str]] = {}
    languages: dict[Any, list[Any]] = {}
    patch_language = interpreter._patch_lang

    def patch_builtins(module: Any, builder: Any, *scope: Any) -> None:
        if module not in found:
            found[module] = [name for name, member in inspect.getmembers(module) if is_builtin(member)]
        for name in found[module]:
            if is_builtin(member := getattr(module, name)):
                interpreter._patch_attr(module, name, member, builder, *scope)

    def patch(function: Any) -> Any:
        if function not in languages:
            modules = [value for value in function.__globals__.values() if inspect.ismodule(value)]
            languages[function] = [one for one in modules if one in (interpreter.tl, interpreter.tl.core)]
        if any(is_builtin(language.load) for language in languages[function]):
            return patch_language(function)
        return interpreter._LangPatchScope() if hasattr(interpreter, "_LangPatchScope") else None

    interpreter._patch_builtin = patch_builtins
    interpreter._patch_lang = patch


def _find_array_types_once(interpreter: Any) -> None:
    """Each value is looked for in a table that is made anew."""
    find = interpreter._get_np_dtype
    found: dict[str, Any] = {}

    def find_once(kind: Any) -> Any:
        if kind.name not in found:
            found[kind.name] = find(kind)
        return found[kind.name]

    interpreter._get_np_dtype = find_once
