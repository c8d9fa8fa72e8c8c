#!/usr/bin/env bash
# Writes files with tessera and has torch read them with the Python that
# TESSERA_PYTHON names, or the system's. Says so where there is no torch.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tests/interop/write_torch_files "$folder"
"${TESSERA_PYTHON:-python3}" tests/interop/torch_reads_ours.py "$folder"
