#!/usr/bin/env bash
# Runs huggingface_folders.py with the Python that TESSERA_PYTHON names, or the
# system's.
set -euo pipefail
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1
"${TESSERA_PYTHON:-python3}" tests/interop/huggingface_folders.py \
  tests/interop/rewrite_folder "${TESSERA_GOLDEN:-tests/golden}/models"
