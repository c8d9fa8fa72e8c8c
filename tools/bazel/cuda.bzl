"""Compiles .cu files with nvcc; without CUDA the stub is linked instead."""

def _flags(ctx, cc):
    optimise = "-O2" if ctx.var["COMPILATION_MODE"] == "opt" else "-O1"
    flags = ["-I.", "-std=c++20", "-arch=" + ctx.attr.arch, "-Xcompiler", "-fPIC", optimise]
    flags += ["-D" + define for define in cc.defines.to_list()]
    flags += ["-I" + path for path in cc.quote_includes.to_list() + cc.includes.to_list()]
    for path in cc.system_includes.to_list():
        flags += ["-isystem", path]
    return flags

def _cuda_objects_impl(ctx):
    info = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    cc = info.compilation_context
    flags = _flags(ctx, cc)
    objects = []
    for src in ctx.files.srcs:
        object = ctx.actions.declare_file(src.basename + ".pic.o")
        ctx.actions.run(
            executable = "/usr/local/cuda/bin/nvcc",
            mnemonic = "CudaCompile",
            progress_message = "nvcc %s" % src.short_path,
            arguments = flags + ["-x", "cu", "-c", src.path, "-o", object.path],
            inputs = depset([src] + ctx.files.hdrs, transitive = [cc.headers]),
            outputs = [object],
            env = {"PATH": "/usr/bin:/bin", "TMPDIR": "/tmp"},
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu", ".cc"]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "arch": attr.string(default = "sm_90"),
    },
)

def cuda_library(name, srcs, stub, hdrs = [], deps = [], **kwargs):
    """A library of `srcs` with --config=cuda, of `stub` without."""
    cuda_objects(name = name + "_objects", srcs = srcs, hdrs = hdrs, deps = deps, tags = ["manual"])
    native.cc_library(
        name = name,
        srcs = select({
            "//:with_cuda": [":" + name + "_objects"],
            "//conditions:default": stub,
        }),
        hdrs = hdrs,
        deps = deps + select({
            "//:with_cuda": ["//tools/bazel:cuda_libs"],
            "//conditions:default": [],
        }),
        **kwargs
    )
