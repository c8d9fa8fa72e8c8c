"""clang-tidy as a cached action: one a library source, none for tests."""

# What .bazelrc compiles with, in clang's words. One target of Highway is enough
# to read its files by.
_FLAGS = [
    "-std=c++20",
    "-x",
    "c++",
    "-march=x86-64-v3",
    "-maes",
    "-mpclmul",
    "-fopenmp",
    "-DHWY_COMPILE_ONLY_STATIC",
    "-Wno-unknown-pragmas",
]

_RUN = "out=$1 src=$2 config=$3; shift 3; " + \
       "/usr/bin/clang-tidy --quiet --config-file=$config $src -- \"$@\" >$out 2>&1 || { sed \"s|$PWD/||g\" $out; exit 1; }"

def _flags(cc):
    flags = ["-D" + define for define in cc.defines.to_list() + cc.local_defines.to_list()]
    for option, paths in [("-iquote", cc.quote_includes), ("-I", cc.includes), ("-isystem", cc.system_includes)]:
        for path in paths.to_list():
            flags += [option, path]
    return flags

def _impl(target, ctx):
    if CcInfo not in target or target.label.workspace_name or ctx.rule.kind != "cc_library":
        return []
    if getattr(ctx.rule.attr, "testonly", False):
        return []
    cc = target[CcInfo].compilation_context
    stamps = []
    for src in [file for label in ctx.rule.attr.srcs for file in label.files.to_list()]:
        if src.extension != "cc" or not src.is_source:
            continue
        stamp = ctx.actions.declare_file(src.basename + "." + ctx.label.name + ".tidy")
        ctx.actions.run_shell(
            mnemonic = "ClangTidy",
            progress_message = "clang-tidy %s" % src.short_path,
            inputs = depset([src, ctx.file._config], transitive = [cc.headers]),
            outputs = [stamp],
            command = _RUN,
            arguments = [stamp.path, src.path, ctx.file._config.path] + _FLAGS + _flags(cc),
        )
        stamps.append(stamp)
    return [OutputGroupInfo(clang_tidy = depset(stamps))]

clang_tidy = aspect(
    implementation = _impl,
    attrs = {"_config": attr.label(default = "//:.clang-tidy", allow_single_file = True)},
)
