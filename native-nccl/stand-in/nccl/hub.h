// The meeting point of all communicators that come from one unique id: a thread in the process that made the id.
#pragma once
#include <string>

namespace stand_in {

// Listens at this name (an abstract unix socket: no file, gone with the process) and serves until all communicators
// have been left. @returns false where it cannot listen
bool start_hub(const std::string& address);

}  // namespace stand_in
