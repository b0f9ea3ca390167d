"""Where librankwise is, the engine as a library, for build systems and whatever loads it (docs/how-to/compiled.md)."""

from __future__ import annotations

import os
from importlib.util import find_spec

from rankwise.contract.public import public


@public
def get_include() -> str:
    """The folder of `rankwise.h`, for a C compiler's -I.

    Example:
        >>> import os
        >>> os.listdir(rw.get_include())
        ['rankwise.h']
    """
    return os.path.join(_package(), "include")


@public
def get_library() -> str:
    """The path of `librankwise.so`, which has the functions of `rankwise.h`. This process has loaded the same file.

    Example:
        >>> import os
        >>> os.path.basename(rw.get_library())
        'librankwise.so'
    """
    return os.path.join(_package(), "lib", "librankwise.so")


@public
def get_cmake_dir() -> str:
    """The folder of the CMake package, for -Drankwise_DIR; pkg-config's file is in `../../pkgconfig`.

    Example:
        >>> import os
        >>> "rankwise-config.cmake" in os.listdir(rw.get_cmake_dir())
        True
    """
    return os.path.join(_package(), "lib", "cmake", "rankwise")


def _package() -> str:
    """The folder of what was compiled. An installation in place has the Python files elsewhere."""
    spec = find_spec("rankwise._native")
    assert spec is not None
    assert spec.origin is not None
    return os.path.dirname(spec.origin)
