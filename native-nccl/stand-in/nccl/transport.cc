#include "transport.h"

#include <cerrno>
#include <unistd.h>

#include <thread>

#include "../environment.h"

namespace stand_in {

static bool write_all(int socket, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes) {
    const ssize_t written = send(socket, next, bytes, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    next += written;
    bytes -= written;
  }
  return true;
}

static bool read_all(int socket, void* data, size_t bytes) {
  char* next = static_cast<char*>(data);
  while (bytes) {
    const ssize_t got = recv(socket, next, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    next += got;
    bytes -= got;
  }
  return true;
}

std::shared_ptr<Connection> Connection::open(const std::string& address) {
  auto connection = std::make_shared<Connection>();
  connection->socket_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  enlarge_buffers(connection->socket_);
  const SocketAddress name(address);
  if (connect(connection->socket_, name.generic(), name.bytes)) return nullptr;
  std::thread([connection] { connection->take_in(); }).detach();
  return connection;
}

Connection::~Connection() {
  if (socket_ >= 0) ::close(socket_);
}

uint32_t Connection::next_ticket() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ++last_ticket_;
}

bool Connection::send(const Header& header, const void* payload) {
  std::lock_guard<std::mutex> lock(send_mutex_);
  return write_all(socket_, &header, sizeof header) && write_all(socket_, payload, header.bytes);
}

void Connection::take_in() {
  for (;;) {
    Message message;
    bool is_whole = read_all(socket_, &message.header, sizeof message.header);
    if (is_whole) {
      message.payload.resize(message.header.bytes);
      is_whole = read_all(socket_, &message.payload[0], message.payload.size());
    }
    if (!is_whole) {
      // The process that made the id is gone; or we have closed, and then nobody asks for the error.
      const bool is_seen = text("STANDIN_NCCL_PEER_DEATH", "error") == "error";
      if (is_seen) set_error(ncclRemoteError, "the root closed its connection");
      return;
    }
    if (message.header.kind == Kind::Error) {
      set_error(message.header.result, message.payload);
      continue;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    answers_[message.header.ticket] = std::move(message);
    changed_.notify_all();
  }
}

void Connection::set_error(int result, const std::string& words) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (error_ || is_closed_) return;
  error_ = result;
  error_words_ = words;
  changed_.notify_all();
}

int Connection::error(std::string* words) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (words) *words = error_words_;
  return error_;
}

Connection::Outcome Connection::wait(uint32_t ticket, Message* answer) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return is_closed_ || error_ || answers_.count(ticket); });
  if (is_closed_) return Outcome::Closed;
  auto found = answers_.find(ticket);
  if (found == answers_.end()) return Outcome::Failed;
  *answer = std::move(found->second);
  answers_.erase(found);
  return Outcome::Answered;
}

void Connection::wait_for_close() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return is_closed_; });
}

void Connection::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
    changed_.notify_all();
  }
  Header goodbye;
  goodbye.kind = Kind::Goodbye;
  send(goodbye, nullptr);
  shutdown(socket_, SHUT_RDWR);
}

}  // namespace stand_in
