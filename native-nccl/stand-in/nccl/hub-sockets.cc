// The hub's loop over its sockets.
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "hub-state.h"
#include "transport.h"

namespace stand_in {

int listen_at(const std::string& address) {
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return -1;
  const SocketAddress name(address);
  if (!bind(listener, name.generic(), name.bytes) && !listen(listener, 256)) return listener;
  close(listener);
  return -1;
}

// Reads what there is, hands on whole messages. @returns false when the rank is gone
static bool read_from(Hub& hub, Peer* peer) {
  for (;;) {
    const bool in_header = peer->read < sizeof(Header);
    if (!in_header && peer->read == sizeof(Header) + peer->payload.size()) {
      peer->read = 0;
      hub.receive(peer, peer->header, std::move(peer->payload));
      peer->payload.clear();
      continue;
    }
    char* target = in_header ? reinterpret_cast<char*>(&peer->header) + peer->read
                             : &peer->payload[peer->read - sizeof(Header)];
    const size_t wanted = in_header ? sizeof(Header) - peer->read
                                    : peer->payload.size() - (peer->read - sizeof(Header));
    const ssize_t got = recv(peer->socket, target, wanted, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (got <= 0) return false;
    peer->read += got;
    if (in_header && peer->read == sizeof(Header)) peer->payload.resize(peer->header.bytes);
  }
}

// Writes as much as the socket takes. @returns false when the rank is gone
static bool write_to(Peer* peer) {
  while (!peer->outgoing.empty()) {
    Outgoing& next = peer->outgoing.front();
    const bool in_header = next.written < sizeof(Header);
    const size_t total = sizeof(Header) + next.header.bytes;
    const char* source = in_header ? reinterpret_cast<const char*>(&next.header) + next.written
                                   : next.payload->data() + next.offset + (next.written - sizeof(Header));
    const size_t wanted = (in_header ? sizeof(Header) : total) - next.written;
    const ssize_t written = wanted ? send(peer->socket, source, wanted, MSG_NOSIGNAL) : 0;
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    next.written += written;
    if (next.written == total) peer->outgoing.pop_front();
  }
  return true;
}

static void accept_all(Hub& hub, int listener) {
  for (;;) {
    const int accepted = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted < 0) return;
    enlarge_buffers(accepted);
    hub.peers.push_back(std::make_unique<Peer>());
    hub.peers.back()->socket = accepted;
  }
}

void serve(int listener) {
  Hub hub;
  while (!hub.is_over()) {
    std::vector<pollfd> sockets{{listener, POLLIN, 0}};
    for (auto& peer : hub.peers) {
      sockets.push_back({peer->socket, static_cast<short>(peer->outgoing.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    }
    if (poll(sockets.data(), sockets.size(), -1) < 0) continue;
    // Those accepted now come after the ones that were polled.
    if (sockets[0].revents) accept_all(hub, listener);
    for (size_t i = 1; i < sockets.size(); i++) {
      Peer* peer = hub.peers[i - 1].get();
      if (sockets[i].revents && !read_from(hub, peer)) hub.leave(peer);
    }
    // Reading may have made answers for anybody.
    for (auto& peer : hub.peers) {
      if (!peer->is_lost && !write_to(peer.get())) hub.leave(peer.get());
    }
    for (auto& peer : hub.peers) {
      if (peer->is_lost) close(peer->socket);
    }
    hub.peers.erase(std::remove_if(hub.peers.begin(), hub.peers.end(), [](auto& peer) { return peer->is_lost; }),
                    hub.peers.end());
  }
  close(listener);
}

}  // namespace stand_in
