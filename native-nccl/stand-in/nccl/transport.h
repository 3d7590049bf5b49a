// A rank's connection to the hub: requests go out from any thread, a thread of its own takes in the answers.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "protocol.h"

namespace stand_in {

// Of an abstract unix socket: its name begins with a zero byte and is as long as it is.
struct SocketAddress {
  sockaddr_un address{};
  socklen_t bytes;

  explicit SocketAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* generic() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// So that a message of some hundred kilobytes takes few turns.
inline void enlarge_buffers(int socket) {
  const int bytes = 1 << 20;
  setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

struct Message {
  Header header;
  std::string payload;
};

class Connection {
 public:
  enum class Outcome { Answered, Failed, Closed };

  // Null where nobody listens at the address.
  static std::shared_ptr<Connection> open(const std::string& address);
  ~Connection();

  uint32_t next_ticket();
  // False after close or failure.
  bool send(const Header&, const void* payload);
  // Until the answer to this ticket is there. Failed: see error().
  Outcome wait(uint32_t ticket, Message* answer);
  // Until close(): what an operation does that met an error, as NCCL's kernels do.
  void wait_for_close();
  // Says goodbye and ends all waits.
  void close();

  int error(std::string* words);  // 0: none

 private:
  void take_in();  // the thread
  void set_error(int result, const std::string& words);

  int socket_ = -1;
  std::mutex send_mutex_, mutex_;
  std::condition_variable changed_;
  std::map<uint32_t, Message> answers_;
  uint32_t last_ticket_ = 0;
  bool is_closed_ = false;
  int error_ = 0;
  std::string error_words_;
};

}  // namespace stand_in
