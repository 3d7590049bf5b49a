#include "hub.h"

#include <sys/socket.h>

#include <algorithm>
#include <thread>

#include "hub-state.h"

namespace stand_in {

void Hub::answer(Peer* peer, Header header, Payload payload, size_t offset) {
  if (peer && !peer->is_lost) peer->outgoing.push_back({header, std::move(payload), offset, 0});
}

void Hub::fail(const std::vector<Peer*>& peers, int result, const std::string& words) {
  for (Peer* peer : peers) {
    Header error;
    error.kind = Kind::Error;
    error.result = result;
    error.bytes = words.size();
    answer(peer, error, std::make_shared<std::string>(words), 0);
  }
}

void Hub::receive(Peer* peer, const Header& header, std::string payload) {
  if (header.kind == Kind::Goodbye) {
    peer->said_goodbye = true;
    return;
  }
  if (header.kind == Kind::Hello) return hello(peer, header);
  World& world = worlds[peer->communicator];
  if (header.kind == Kind::Collective || header.kind == Kind::Split) {
    collective(world, peer, header, std::move(payload));
  } else if (header.kind == Kind::Send || header.kind == Kind::Receive) {
    point_to_point(world, peer, header, std::move(payload));
  }
}

void Hub::hello(Peer* peer, const Header& header) {
  World& world = worlds[header.communicator];
  if (world.is_complete) return fail({peer}, ncclInvalidUsage, "this unique id was used before");
  if (!world.size) {
    world.size = header.size;
    world.peers.resize(header.size);
    world.hellos.resize(header.size);
  }
  if (world.size != header.size) {
    fail({peer}, ncclInvalidUsage, "ranks disagree about the size of the communicator");
    return fail(world.peers, ncclInvalidUsage, "ranks disagree about the size of the communicator");
  }
  if (world.peers[header.rank]) {
    const std::string words = "rank " + std::to_string(header.rank) + " of " + std::to_string(world.size) +
                              " ranks has already checked in";
    fail({peer}, ncclInvalidUsage, words);
    return fail(world.peers, ncclInvalidUsage, words);
  }
  peer->communicator = header.communicator;
  peer->rank = header.rank;
  world.peers[header.rank] = peer;
  world.hellos[header.rank] = header;
  if (++world.joined < world.size) return;
  world.is_complete = true;
  if (const std::string words = duplicate_device(world); !words.empty()) {
    return fail(world.peers, ncclInvalidUsage, words);
  }
  for (int rank = 0; rank < world.size; rank++) {
    Header ready = world.hellos[rank];
    ready.kind = Kind::Ready;
    answer(world.peers[rank], ready);
  }
}

std::string Hub::duplicate_device(const World& world) {
  if (number("STANDIN_NCCL_MULTI_RANK_GPU", 0)) return "";
  for (int second = 0; second < world.size; second++) {
    for (int first = 0; first < second; first++) {
      const Header &a = world.hellos[first], &b = world.hellos[second];
      if (std::memcmp(a.uuid, b.uuid, sizeof a.uuid)) continue;
      char words[128];
      std::snprintf(words, sizeof words, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x000",
                    first, second, a.device + 1);
      return words;
    }
  }
  return "";
}

static bool is_same_call(const Header& a, const Header& b) {
  return a.kind == b.kind && (a.kind == Kind::Split || (a.collective == b.collective && a.count == b.count &&
                                                        a.dtype == b.dtype && a.op == b.op && a.root == b.root));
}

// The real library hangs or computes garbage.
void Hub::mismatch(const World& world) {
  if (text("STANDIN_NCCL_MISMATCH", "hang") == "error") {
    fail(world.peers, ncclInvalidUsage, "ranks called different operations");
  }
}

void Hub::collective(World& world, Peer* peer, const Header& header, std::string payload) {
  auto& calls = world.calls[header.sequence];
  calls[peer->rank] = {header, std::move(payload)};
  if (static_cast<int>(calls.size()) < world.size) return;
  const auto finished = std::move(calls);
  world.calls.erase(header.sequence);
  const Header first = finished.begin()->second.header;
  for (auto& [rank, call] : finished) {
    if (!is_same_call(first, call.header)) return mismatch(world);
  }
  if (first.kind == Kind::Split) return split(world, finished);

  std::vector<const char*> inputs;
  for (auto& [rank, call] : finished) inputs.push_back(call.payload.data());
  const size_t ranks = inputs.size(), bytes = first.count * size_of(first.dtype);
  auto output = std::make_shared<std::string>();
  switch (first.collective) {
    case Collective::AllReduce: *output = fold_as_ring(inputs, first.count, first.dtype, first.op); break;
    case Collective::Broadcast: *output = finished.at(first.root).payload; break;
    case Collective::Reduce:
      output->resize(bytes);
      fold(inputs, 0, first.count, first.dtype, first.op, first.root + 1, &(*output)[0]);
      break;
    case Collective::AllGather:
      for (auto& [rank, call] : finished) *output += call.payload;
      break;
    case Collective::ReduceScatter:
      *output = fold_as_ring(inputs, first.count * ranks, first.dtype, first.op);
  }
  for (auto& [rank, call] : finished) {
    Header result = call.header;
    result.kind = Kind::Result;
    const bool is_scatter = first.collective == Collective::ReduceScatter;
    result.bytes = is_scatter ? bytes : output->size();
    if (first.collective == Collective::Reduce && rank != first.root) result.bytes = 0;
    answer(world.peers[rank], result, output, is_scatter ? rank * bytes : 0);
  }
}

void Hub::split(World& world, const std::map<int, Call>& calls) {
  std::map<int, std::vector<std::pair<int, int>>> members;  // color -> (key, rank of the parent)
  for (auto& [rank, call] : calls) {
    if (call.header.color >= 0) members[call.header.color].push_back({call.header.key, rank});
  }
  // Before `worlds` grows: no reference into it may be kept.
  const std::vector<Peer*> peers = world.peers;
  for (auto& [rank, call] : calls) {
    Header child = call.header;
    child.kind = Kind::Child;
    child.rank = -1;
    if (child.color < 0) answer(peers[rank], child);
  }
  for (auto& [color, group] : members) {
    std::sort(group.begin(), group.end());
    const uint32_t communicator = next_communicator++;
    for (size_t rank = 0; rank < group.size(); rank++) {
      Header child = calls.at(group[rank].second).header;
      child.kind = Kind::Child;
      child.communicator = communicator;
      child.rank = static_cast<int>(rank);
      child.size = static_cast<int>(group.size());
      answer(peers[group[rank].second], child);
    }
  }
}

// A send ends when its receive is there, never before; in the order of issue for each pair and direction.
void Hub::point_to_point(World& world, Peer* peer, const Header& header, std::string payload) {
  const bool is_send = header.kind == Kind::Send;
  auto& pair = world.pairs[is_send ? std::make_pair(peer->rank, header.peer) : std::make_pair(header.peer, peer->rank)];
  (is_send ? pair.sends : pair.receives).push_back({header, std::move(payload)});
  while (!pair.sends.empty() && !pair.receives.empty()) {
    Call send = std::move(pair.sends.front()), receive = std::move(pair.receives.front());
    pair.sends.pop_front();
    pair.receives.pop_front();
    if (send.header.count != receive.header.count || send.header.dtype != receive.header.dtype) return mismatch(world);
    Peer *sender = world.peers[receive.header.peer], *receiver = world.peers[send.header.peer];
    send.header.kind = receive.header.kind = Kind::Matched;
    receive.header.bytes = send.payload.size();
    send.header.bytes = 0;
    answer(sender, send.header);
    answer(receiver, receive.header, std::make_shared<std::string>(std::move(send.payload)), 0);
  }
}

void Hub::leave(Peer* peer) {
  peer->is_lost = true;
  if (peer->rank < 0) return;
  World& world = worlds[peer->communicator];
  world.peers[peer->rank] = nullptr;
  if (!peer->said_goodbye && text("STANDIN_NCCL_PEER_DEATH", "error") == "error") {
    fail(world.peers, ncclRemoteError, "rank " + std::to_string(peer->rank) + " closed its connection");
  }
}

bool Hub::is_over() {
  return worlds[0].is_complete && peers.empty();
}

bool start_hub(const std::string& address) {
  const int listener = listen_at(address);
  if (listener < 0) return false;
  std::thread(serve, listener).detach();
  return true;
}

}  // namespace stand_in
