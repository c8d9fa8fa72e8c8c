// Gives a reader damaged files, one after the other.
#pragma once

#include <cstdint>

#include "tests/fuzz/fuzz_reader.h"

namespace tessera {

// Reads the seeds, then mutations `first`, `first` + 1, ... for `seconds`, and
// returns how many. A test failure, a crash, more memory than ten times the
// file, too long a time and a leak (where the sanitizer looks for them) end it,
// with the number of the mutation said and the file that was read saved in
// $TEST_UNDECLARED_OUTPUTS_DIR or the current folder.
int64_t Fuzz(const FuzzReader& reader, uint64_t first, double seconds);

// Reads one file as Fuzz does; `what` is said of it when something is wrong.
void ReadOnce(const FuzzReader& reader, const std::string& bytes,
              const std::string& what);

}  // namespace tessera
