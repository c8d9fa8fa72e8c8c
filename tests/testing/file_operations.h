// What a program does to the files in a folder, as a list of operations that
// can be counted, slowed down, made to fail, or be the last.
//
// A test that links this gets its own mkdir, open, write, fsync, rename, unlink
// and so on: for the whole process, the standard library included, and with no
// effect until StartFileOperations.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

enum class FileFault {
  kNone,      // They are only counted.
  kFail,      // One of them fails with an error number, and nothing is done.
  kFailFrom,  // That one and all that follow.
  kKill,      // SIGKILL in place of one of them: what was done before stays.
  // Instead of one of them the machine loses power: a copy of the folder is
  // made as it would be found afterwards, and the process gets SIGKILL. In the
  // copy there is only what was synced: of a file what its last fsync saw, of a
  // folder the names that its last fsync saw.
  kLosePower,
  // The same of a disk that writes names at once: only contents are lost.
  kLosePowerNotNames,
};

struct FileOperationsOptions {
  std::string folder;  // Only what is done below it counts.
  FileFault fault = FileFault::kNone;
  int64_t at = 0;         // Number of the operation, from 0 on.
  int error_number = 28;  // ENOSPC
  int delay_us = 0;       // Before each operation.
  std::string copy = {};  // Of kLosePower; must not exist.
  // Two names are never exchanged (EINVAL), as on file systems that cannot.
  bool no_exchange = false;
};

// From now on; what is in the folder counts as synced. Operations of all
// threads come one after the other.
void StartFileOperations(const FileOperationsOptions& options);
// Ends it, and returns how many there were.
int64_t StopFileOperations();

}  // namespace tessera
