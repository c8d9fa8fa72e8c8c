"""The safetensors package reads what tessera writes, and the other way.

    safetensors_both_ways.py COPY_SAFETENSORS REWRITE_FOLDER MODELS

COPY_SAFETENSORS reads a file and writes another, REWRITE_FOLDER loads a model
into shards and saves these. Files of the package are copied and must be the
same to the byte; golden models in one file or many, cut anew here, must come
back with the same tensors and an index that fits its files.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

try:
    import numpy
    import safetensors
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    print(f"NOT RUN: {error}")
    sys.exit(77)

DTYPES = ["float64", "float32", "float16", "int64", "int32", "uint8", "bool"]
PYTHON_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
WAYS = [  # Ranks, version, largest file.
    (1, 2, "5GB"),
    (2, 1, "40KB"),
    (3, 2, "20KB"),
]


def random_tensors(rng):
    values = numpy.random.default_rng(rng.randrange(1 << 30))
    tensors = {}
    for i in range(rng.randrange(1, 9)):
        shape = [rng.choice([0, 1, 2, 3, 7, 33]) for _ in range(rng.randrange(4))]
        dtype = rng.choice(DTYPES)
        count = int(numpy.prod(shape)) * numpy.dtype(dtype).itemsize
        raw = values.integers(0, 2 if dtype == "bool" else 256, count, numpy.uint8)
        name = rng.choice(["a", "layer.", "größe ", "\u2581\"\\", ""]) + str(i)
        tensors[name] = raw.view(dtype).reshape(shape)
    return tensors


def copy_files(program, rng, num_files):
    with tempfile.TemporaryDirectory() as scratch:
        theirs, ours = scratch + "/theirs", scratch + "/ours"
        for _ in range(num_files):
            tensors = random_tensors(rng)
            # One text: the package writes more of them in any order.
            save_file(tensors, theirs, {"format": "pt"})
            subprocess.run([program, theirs, ours], check=True)
            got = load_file(ours)
            assert got.keys() == tensors.keys(), got.keys() ^ tensors.keys()
            for name, wanted in tensors.items():
                assert got[name].dtype == wanted.dtype, name
                assert got[name].shape == wanted.shape, name
                assert got[name].tobytes() == wanted.tobytes(), name
            assert pathlib.Path(ours).read_bytes() == pathlib.Path(theirs).read_bytes(), "bytes"


def read_files(paths):
    """Every tensor as {"shape", "dtype", "data"}: of any element type."""
    return {name: tensor for path in paths
            for name, tensor in safetensors.deserialize(pathlib.Path(path).read_bytes())}


def read_folder(folder):
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return read_files([folder / "model.safetensors"])
    weight_map = json.loads(index.read_text())["weight_map"]
    tensors = {}
    for file in sorted(set(weight_map.values())):
        held = read_files([folder / file])
        assert sorted(held) == sorted(n for n, f in weight_map.items() if f == file), file
        tensors.update(held)
    return tensors


def spec_of(tensor):
    """What the package writes `tensor` from, which must stay."""
    data = numpy.frombuffer(tensor["data"], numpy.uint8)
    return safetensors.TensorSpec(
        dtype=PYTHON_NAMES[tensor["dtype"]], shape=tensor["shape"],
        data_ptr=data.ctypes.data, data_len=len(data))


def write_shards(rng, tensors, source, folder):
    """The tensors dealt out to three files, with the index of transformers."""
    folder.mkdir()
    for path in source.glob("*.json"):
        if not path.name.endswith(".index.json"):
            (folder / path.name).write_bytes(path.read_bytes())
    files = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    held = {file: {} for file in files}
    for i, name in enumerate(sorted(tensors, key=lambda _: rng.random())):
        held[files[i % 3]][name] = tensors[name]
    weight_map = {}
    for file, some in held.items():
        weight_map.update({name: file for name in some})
        (folder / file).write_bytes(
            safetensors.serialize({name: spec_of(t) for name, t in some.items()},
                                  {"format": "pt"}))
    total = sum(len(t["data"]) for t in tensors.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))


def rewrite(program, folder, wanted):
    for ranks, version, size in WAYS:
        with tempfile.TemporaryDirectory() as out:
            subprocess.run([program, folder, out, str(ranks), str(version), size], check=True)
            got = read_folder(pathlib.Path(out))
            # Tied weights may be written once.
            assert got.keys() == wanted.keys(), (folder, got.keys() ^ wanted.keys())
            for name, tensor in wanted.items():
                assert got[name] == tensor, f"{folder}: {name}"


def main():
    copy, rewrite_folder, models = sys.argv[1:]
    rng = random.Random(1)
    num_files = 60
    copy_files(copy, rng, num_files)
    folders = sorted(p.parent for p in pathlib.Path(models).rglob("config.json"))
    assert folders, f"no model in {models}"
    for folder in folders:
        wanted = read_folder(folder)
        rewrite(rewrite_folder, folder, wanted)
        with tempfile.TemporaryDirectory() as scratch:
            shards = pathlib.Path(scratch) / "shards"
            write_shards(rng, wanted, folder, shards)
            rewrite(rewrite_folder, shards, wanted)
    print(f"{num_files} files the same to the byte; {len(folders)} models, "
          f"in their files and cut anew, each written in {len(WAYS)} ways")


main()
