#!/usr/bin/env bash
# Runs compare_tokenizers.py with the Python that TESSERA_PYTHON names, or the
# system's. Says so where there is no tokenizers package.
set -euo pipefail
export TOKENIZERS_PARALLELISM=false
"${TESSERA_PYTHON:-python3}" tests/interop/compare_tokenizers.py \
  tests/interop/tokenize_lines --texts=40
