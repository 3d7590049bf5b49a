// Inside the hub; all of it belongs to the hub's thread.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "../environment.h"
#include "protocol.h"
#include "reduction.h"

namespace stand_in {

using Payload = std::shared_ptr<const std::string>;

struct Outgoing {
  Header header;
  Payload payload;
  size_t offset;  // of header.bytes in the payload
  size_t written; // of header and payload
};

// A connection: one rank of one communicator.
struct Peer {
  int socket = -1;
  uint32_t communicator = 0;
  int rank = -1;  // until it has said hello
  bool said_goodbye = false, is_lost = false;
  std::deque<Outgoing> outgoing;
  Header header;        // being read
  size_t read = 0;      // of header and payload
  std::string payload;
};

struct Call {
  Header header;
  std::string payload;
};

struct Pair {
  std::deque<Call> sends, receives;
};

// A communicator, as the hub sees it.
struct World {
  int size = 0, joined = 0;
  bool is_complete = false;
  std::vector<Peer*> peers;  // null: not there
  std::vector<Header> hellos;
  std::map<uint64_t, std::map<int, Call>> calls;  // by sequence, by rank
  std::map<std::pair<int, int>, Pair> pairs;      // by sender and receiver
};

struct Hub {
  std::vector<std::unique_ptr<Peer>> peers;
  std::map<uint32_t, World> worlds;  // by communicator; 0 is the one that the unique id stands for
  uint32_t next_communicator = 1;

  void receive(Peer*, const Header&, std::string payload);
  void leave(Peer*);
  bool is_over();

 private:
  void answer(Peer*, Header, Payload = nullptr, size_t offset = 0);
  void fail(const std::vector<Peer*>&, int result, const std::string& words);
  void hello(Peer*, const Header&);
  std::string duplicate_device(const World&);
  void mismatch(const World&);
  void collective(World&, Peer*, const Header&, std::string payload);
  void split(World&, const std::map<int, Call>&);
  void point_to_point(World&, Peer*, const Header&, std::string payload);
};

// hub-sockets.cc
int listen_at(const std::string& address);  // -1: cannot
void serve(int listener);                   // the hub's thread

}  // namespace stand_in
