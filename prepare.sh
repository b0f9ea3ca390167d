#!/bin/sh
# Finds what this machine lacks for rankwise; as root on Debian or Ubuntu it installs that, elsewhere it
# names the command that does. make calls it before anything else:
#
#   prepare.sh build              what building needs; it fails where something is missing
#   prepare.sh tests              what the tests need beside that; without it some are skipped and say so
#   prepare.sh environment PATH   a private environment of Python, made again where it was left half made
#
# The variables PYTHON and CXX name the Python and the compiler; make adds its own version, MAKE_VERSION.
set -u
: "${PYTHON:=python3}"

refuse() {
    echo "rankwise cannot be built here: $*" >&2
    exit 1
}

python() { "$PYTHON" -c "$@"; }

need() { # WHAT is missing, the packages that bring it on DEBIAN, and on FEDORA
    missing="$missing${missing:+, }$1" debian="$debian $2" fedora="$fedora $3"
}

# ---- what may be missing ----

for_build() {
    [ "$(uname -s)" = Linux ] || refuse "it needs Linux, and this is $(uname -s)"
    case ${MAKE_VERSION:-4} in
        [4-9]* | [1-9][0-9]*) ;;
        *) refuse "it needs GNU make 4.0 or later, and this is $MAKE_VERSION" ;;
    esac
    command -v "$PYTHON" >/dev/null || {
        [ "$PYTHON" = python3 ] || refuse "there is no $PYTHON"
        need "Python" "python3 python3-venv python3-dev" "python3-devel"
    }
    command -v "$PYTHON" >/dev/null && check_python
    find_compiler
    if [ -z "$compiler" ]; then
        need "a C++ compiler" "g++" "gcc-c++"
    elif ! printf '#include <%s>\n' bit concepts span | "$compiler" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; then
        refuse "$compiler has no C++20 (GCC 11, Clang 14 and later have it); name another: make CXX=g++-12, for example"
    fi
}

check_python() {
    python 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        refuse "it needs Python 3.10 or later, and this is $("$PYTHON" -V); name another: make PYTHON=python3.12, for example"
    python 'import sys; sys.exit(sys.maxsize < 2**32)' || refuse "it needs a 64-bit Linux, and $PYTHON is of 32 bits"
    python 'import ensurepip, venv' 2>/dev/null || need "Python's venv" "$(of_python)-venv" "python3"
    python 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ||
        need "Python's headers" "$(of_python)-dev" "$(of_python)-devel"
}

of_python() { # how the packages of this Python are called: python3, or python3.12 where that is not the default
    this='import sys; print(*sys.version_info[:2])'
    if [ "$(python "$this")" = "$(/usr/bin/python3 -c "$this" 2>/dev/null)" ]; then
        echo python3
    else
        python 'import sys; print("python%d.%d" % sys.version_info[:2])'
    fi
}

find_compiler() { # as CMake does
    for compiler in ${CXX:-c++ g++ clang++}; do
        command -v "$compiler" >/dev/null && return
    done
    [ -z "${CXX:-}" ] || refuse "there is no $CXX, which CXX names"
    compiler=
}

for_tests() {
    # A Python that does not come from the system's packages has Tcl if it was built with it.
    python 'import _tkinter' 2>/dev/null || [ "$(python 'import sys; print(sys.base_prefix)')" != /usr ] ||
        need "Tcl in Python" "python3-tk" "$(of_python)-tkinter"
    command -v git >/dev/null || need "git" "git" "git"
    command -v tclsh >/dev/null || need "tclsh" "tcl" "tcl"
    { command -v ip && command -v tc; } >/dev/null || need "ip and tc" "iproute2" "iproute iproute-tc"
    command -v unshare >/dev/null || need "unshare" "util-linux" "util-linux"
    command -v musl-gcc >/dev/null || need "musl-gcc" "musl-tools" "musl-gcc"
    command -v spin >/dev/null || need "the model checker spin" "spin" ""
    command -v eu-stack >/dev/null || need "eu-stack" "elfutils" "elfutils"
    find_compiler
    object=$(mktemp)
    for sanitizer in thread address; do
        echo 'int main() {}' | "$compiler" -fsanitize=$sanitizer -x c++ - -o "$object" 2>/dev/null ||
            need "the compiler's $sanitizer sanitizer" "g++" "$([ $sanitizer = thread ] && echo libtsan || echo libasan)"
    done
    rm -f "$object"
}

# ---- what is done about it ----

look() { # for_build or for_tests; sets missing
    missing='' debian='' fedora=''
    "$1"
}

install_missing() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    echo "== Installing with apt-get:$debian"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # one word a package
    apt-get install -qq -y --no-install-recommends $debian >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -qq -y --no-install-recommends $debian; } >/dev/null
}

supply() { # for_build or for_tests: what is missing is installed where that may be; 1 where it still is missing
    look "$1"
    [ -n "$missing" ] || return 0
    install_missing
    look "$1"
    [ -n "$missing" ] || return 0
    as_root=$([ "$(id -u)" = 0 ] || echo 'sudo ')
    echo "Missing: $missing."
    echo "  Debian, Ubuntu:  ${as_root}apt-get install$debian"
    # shellcheck disable=SC2086 # echo joins the packages
    [ -z "${fedora# }" ] || echo "  Fedora:          ${as_root}dnf install" $fedora
    return 1
}

environment() {
    # With python and pip it is whole. What is no environment at all is left alone.
    "$1/bin/python" -m pip --version >/dev/null 2>&1 && return
    if [ -e "$1" ] && [ ! -f "$1/pyvenv.cfg" ] && [ -n "$(ls -A "$1")" ]; then
        refuse "$1 is no environment of Python, and it is not empty; remove it, or name another folder"
    fi
    echo "== A private environment in $1"
    "$PYTHON" -m venv --clear "$1"
}

case ${1:-} in
    build) supply for_build || refuse "install what is missing, then run make again" ;;
    tests) supply for_tests || echo "== Tests that need what is missing are skipped, or show less when they fail." ;;
    environment) environment "$2" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
