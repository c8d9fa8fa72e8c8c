"""Repositories that tessera needs. Its own WORKSPACE and an embedder's call the same macro."""

def _files_impl(ctx):
    for path, text in ctx.attr.files.items():
        ctx.file(path, text)

_files = repository_rule(
    implementation = _files_impl,
    attrs = {"files": attr.string_dict()},
)

_NATIVE = ["cc_library", "cc_binary", "cc_test", "cc_import", "cc_toolchain", "cc_toolchain_suite"]

# Bazel's own rules name these two; Debian has no package of them.
_GENERATED = {
    "rules_cc": {
        "BUILD": "",
        "cc/BUILD": "",
        "cc/defs.bzl": "\n".join(["%s = native.%s" % (name, name) for name in _NATIVE]),
    },
    "remote_coverage_tools": {
        "BUILD": "filegroup(name = \"coverage_report_generator\", visibility = [\"//visibility:public\"])",
    },
}

_DEBIAN = {
    "bazel_skylib": "/usr/share/bazel/tools/skylib",
    "platforms": "/usr/share/bazel/platforms",
    "rules_java": "/usr/share/bazel/rules/java",
    "rules_proto": "/usr/share/bazel/rules/proto",
}

_LIBRARIES = {
    "cuda": "/usr/local/cuda",
    "system": "/usr",
}

def tessera_dependencies(skip = []):
    """Declares each repository that is not there yet and not named in `skip`."""
    have = native.existing_rules().keys() + skip
    for name, files in _GENERATED.items():
        if name not in have:
            _files(name = name, files = files)
    for name, path in _DEBIAN.items():
        if name not in have:
            native.local_repository(name = name, path = path)
    for name, path in _LIBRARIES.items():
        if name not in have:
            native.new_local_repository(
                name = name,
                path = path,
                build_file = "@tessera//tools/bazel:%s.BUILD" % name,
            )
