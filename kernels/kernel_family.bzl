"""One library for each family of kernels."""

load("//tools/bazel:tessera.bzl", "tessera_cc_library", "tessera_cc_test")

def kernel_family(name, deps = [], srcs = [], openmp = True, test = True, test_deps = []):
    """NAME.h, cpu/NAME.cc and cuda/NAME_stub.cc; and NAME_test.cc.

    Args:
      name: of the family and its files.
      deps: beyond the vocabulary.
      srcs: further sources and private headers.
      openmp: whether its loops run on a team of threads.
      test: whether there is a NAME_test.cc.
      test_deps: of the test.
    """
    tessera_cc_library(
        name = name,
        srcs = ["cpu/%s.cc" % name, "cuda/%s_stub.cc" % name, "cuda/stub.h"] + srcs,
        hdrs = ["%s.h" % name],
        openmp = openmp,
        visibility = ["//:kernels_users"],
        deps = [":kernels"] + deps,
    )
    if test:
        tessera_cc_test(
            name = name + "_test",
            deps = [":" + name, "//tests/testing"] + test_deps,
        )
