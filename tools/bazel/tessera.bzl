"""cc rules with what all of tessera's own code is compiled with."""

# a * b + c is two roundings everywhere, or the same sum differs between a
# vector body and its tail, and between one compiler and the next.
_COPTS = ["-ffp-contract=off"]
_OPENMP_COPTS = ["-fopenmp"]
_OPENMP = Label("//tools/bazel:openmp")

def _copts(copts, openmp):
    return _COPTS + (_OPENMP_COPTS if openmp else []) + copts

def _deps(deps, openmp):
    return deps + ([_OPENMP] if openmp else [])

def tessera_cc_library(name, copts = [], deps = [], openmp = False, **kwargs):
    """A cc_library. `openmp` compiles its loops for oneDNN's team of threads.

    Linked statically only, or each source would be compiled twice.
    """
    native.cc_library(
        name = name,
        linkstatic = True,
        copts = _copts(copts, openmp),
        deps = _deps(deps, openmp),
        **kwargs
    )

def tessera_cc_binary(name, copts = [], deps = [], openmp = False, **kwargs):
    native.cc_binary(
        name = name,
        copts = _copts(copts, openmp),
        deps = _deps(deps, openmp),
        **kwargs
    )

def tessera_cc_test(name, srcs = None, size = "small", copts = [], deps = [], openmp = False, **kwargs):
    """A cc_test with GoogleTest's main; its source is NAME.cc unless told."""
    native.cc_test(
        name = name,
        srcs = srcs or [name + ".cc"],
        size = size,
        copts = _copts(copts, openmp),
        deps = _deps(deps, openmp) + ["@system//:gtest_main"],
        **kwargs
    )

def tessera_cc_benchmark(name, srcs = None, copts = [], deps = [], openmp = False, tags = [], **kwargs):
    """A program of Google Benchmark, built by `bazel build //...`, never a test."""
    native.cc_binary(
        name = name,
        srcs = srcs or [name + ".cc"],
        testonly = True,
        copts = _copts(copts, openmp),
        deps = _deps(deps, openmp) + ["@system//:benchmark_main"],
        tags = tags,
        **kwargs
    )
