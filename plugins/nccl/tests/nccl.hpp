// What NCCL does with a plug-in, in the order of NCCL's own sources (plugin/net.cc, plugin/net/net_v11.cc,
// transport/coll_net.cc, transport/net.cc). It knows nothing of Wiresum. A folder stands for NCCL's bootstrap: there
// nodes leave handles for each other. Each result is compared where the sum is known, bit for bit.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../src/nccl_v11.h"
#include "logger.hpp"

namespace nccl {

constexpr std::size_t kSteps = 8;  // NCCL_STEPS
constexpr std::size_t kStepBytesMax = std::size_t{2} << 20;
constexpr std::uint8_t kUntouched = 0x5A;
constexpr std::size_t kRegionBytes = kSteps * kStepBytesMax;
using Memory = std::vector<std::uint8_t>;
using Region = std::unique_ptr<std::uint8_t[]>;

inline std::string folder;
inline int rank_here = 0;
inline int size = 0;

[[noreturn]] inline void die(const std::string& what) {
  std::fprintf(stderr, "node %d: %s (%s)\n", rank_here, what.c_str(), last_warning.c_str());
  std::_Exit(3);
}

inline void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

inline void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) die(std::string(what) + " failed with " + std::to_string(result));
}

// ---- NCCL's bootstrap ----

inline void leave(const std::string& name, const void* bytes, std::size_t count) {
  const std::string path = folder + "/" + name;
  std::ofstream(path + ".part", std::ios::binary).write(static_cast<const char*>(bytes), static_cast<long>(count));
  std::rename((path + ".part").c_str(), path.c_str());
}

inline Memory take(const std::string& name) {
  while (access((folder + "/" + name).c_str(), R_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::ifstream file(folder + "/" + name, std::ios::binary);
  std::ostringstream all;
  all << file.rdbuf();
  const std::string text = all.str();
  return {text.begin(), text.end()};
}

inline std::string own(const std::string& name, int rank) { return name + "." + std::to_string(rank); }

// ---- plugin/net.cc ----

struct Library {
  const ncclNet_v11_t* net;
  const ncclCollNet_v11_t* collnet;
  void* context = nullptr;
};

inline Library library;

inline void load(const char* path) {
  void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) die(dlerror());
  if (dlsym(handle, "ncclNetPlugin_v12") != nullptr) die("it has a table that it was not made for");
  library.net = static_cast<const ncclNet_v11_t*>(dlsym(handle, "ncclNetPlugin_v11"));
  library.collnet = static_cast<const ncclCollNet_v11_t*>(dlsym(handle, "ncclCollNetPlugin_v11"));
  if (library.net == nullptr || library.collnet == nullptr) die("it lacks a table");
  ncclNetCommConfig_v11_t config{.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
  void* context = nullptr;
  int count = 0;
  check(library.net->init(&context, 17, &config, log, nullptr), "init of net");
  check(library.net->devices(&count), "devices of net");
  check(library.collnet->init(&library.context, 17, log), "init of collnet");
  check(library.collnet->devices(&count), "devices of collnet");
  if (count != 1) die("it has more than one device");
  ncclNetProperties_v11_t properties{};
  ncclNetProperties_v11_t of_net{};
  check(library.collnet->getProperties(0, &properties), "getProperties of collnet");
  check(library.net->getProperties(0, &of_net), "getProperties of net");
  // NCCL's topology joins both by the name.
  if (std::string(properties.name) != of_net.name) die("the tables' devices have different names");
  if (properties.ptrSupport != NCCL_PTR_HOST) die("it takes other memory than the host's");
  if (properties.maxCollBytes == 0 || properties.maxCollBytes > NCCL_MAX_NET_SIZE_BYTES) die("maxCollBytes");
}

// ---- transport/coll_net.cc ----

struct Group {
  void* comm = nullptr;
  ncclResult_t connected = ncclSuccess;
  Region sources = std::make_unique_for_overwrite<std::uint8_t[]>(kRegionBytes);
  Region destinations = std::make_unique_for_overwrite<std::uint8_t[]>(kRegionBytes);
  void* source_handle = nullptr;
  void* destination_handle = nullptr;
  void* to_next = nullptr;
  void* from_previous = nullptr;
};

/// How long NCCL's proxy does something else when nothing has moved.
inline void pause() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

/// sharedListen() and sharedConnect().
inline Group connect(const std::string& name) {
  Group made;
  std::array<char, NCCL_NET_HANDLE_MAXSIZE> handle{};
  void* listener = nullptr;
  check(library.collnet->listen(library.context, 0, handle.data(), &listener), "listen");
  leave(own(name, rank_here), handle.data(), handle.size());
  std::vector<Memory> handles;
  std::vector<void*> pointers;
  for (int rank = 0; rank < size; ++rank) handles.push_back(take(own(name, rank)));
  for (Memory& one : handles) pointers.push_back(one.data());
  made.connected = library.collnet->connect(pointers.data(), size, rank_here, listener, &made.comm);
  if (made.connected != ncclSuccess) return made;
  check(library.collnet->closeListen(listener), "closeListen");
  const auto reg = [&made](const Region& memory, void** mhandle) {
    check(library.collnet->regMr(made.comm, memory.get(), kRegionBytes, NCCL_PTR_HOST, mhandle), "regMr");
  };
  reg(made.sources, &made.source_handle);
  reg(made.destinations, &made.destination_handle);
  return made;
}

inline Group connected(const std::string& name) {
  Group made = connect(name);
  check(made.connected, "connect");
  return made;
}

inline void close(Group& group) {
  check(library.collnet->deregMr(group.comm, group.source_handle), "deregMr");
  check(library.collnet->deregMr(group.comm, group.destination_handle), "deregMr");
  check(library.collnet->closeColl(group.comm), "closeColl");
  if (group.to_next != nullptr) check(library.net->closeSend(group.to_next), "closeSend");
  if (group.from_previous != nullptr) check(library.net->closeRecv(group.from_previous), "closeRecv");
}

/// How a step's request ends. `bytes`: what the plug-in says.
inline ncclResult_t await(void* request, int* bytes) {
  int done = 0;
  while (true) {
    const ncclResult_t result = library.collnet->test(request, &done, bytes);
    if (result != ncclSuccess || done != 0) return result;
    pause();
  }
}

// ---- transport/net.cc ----

inline int node_after(int rank, int distance) { return (rank + distance + size) % size; }

/// Connections with both neighbours in a ring.
inline void join_ring(Group& group, const std::string& name) {
  std::array<char, NCCL_NET_HANDLE_MAXSIZE> handle{};
  void* listener = nullptr;
  check(library.net->listen(nullptr, 0, handle.data(), &listener), "listen of net");
  leave(own(name + ".ring", rank_here), handle.data(), handle.size());
  Memory next = take(own(name + ".ring", node_after(rank_here, 1)));
  while (group.to_next == nullptr || group.from_previous == nullptr) {
    if (group.to_next == nullptr) {
      check(library.net->connect(nullptr, 0, next.data(), &group.to_next, nullptr), "connect of net");
    }
    if (group.from_previous == nullptr) {
      check(library.net->accept(listener, &group.from_previous, nullptr), "accept of net");
    }
    pause();
  }
  check(library.net->closeListen(listener), "closeListen of net");
}

// ---- elements ----

/// Small, so that every float has the exact sum of all nodes' elements.
inline int element(unsigned seed, int rank, std::size_t index) {
  const auto mixed =
      static_cast<std::uint32_t>(index) * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u + seed * 97u;
  return static_cast<int>((mixed >> 7) % 33) - 16;
}

inline std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
      return 8;
    default:
      return 4;
  }
}

inline bool is_float(ncclDataType_t type) { return type == ncclFloat32 || type == ncclFloat16 || type == ncclBfloat16; }

/// What a whole number up to 2,048 is in a type. Of integers it is a multiple, modulo their size: sums stay sums.
inline void put(ncclDataType_t type, int number, std::uint8_t* memory) {
  if (!is_float(type)) {
    const std::uint64_t integer = static_cast<std::uint64_t>(std::int64_t{number}) * 0x0123456789ABCDEFu;
    std::memcpy(memory, &integer, bytes_of(type));
    return;
  }
  const auto as_float = static_cast<float>(number);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &as_float, sizeof bits);
  if (type == ncclBfloat16) bits >>= 16;
  if (type == ncclFloat16 && number != 0) {
    bits = ((bits >> 16) & 0x8000u) | ((((bits >> 23) & 0xFFu) - 112u) << 10) | ((bits >> 13) & 0x3FFu);
  }
  std::memcpy(memory, &bits, bytes_of(type));
}

inline void fill(ncclDataType_t type, unsigned seed, int rank, std::size_t first, std::uint8_t* memory,
                 std::size_t bytes) {
  for (std::size_t i = 0; i < bytes / bytes_of(type); ++i) {
    put(type, element(seed, rank, first + i), memory + i * bytes_of(type));
  }
}

inline Memory sum(ncclDataType_t type, unsigned seed, std::size_t first, std::size_t bytes) {
  Memory made(bytes);
  for (std::size_t i = 0; i < bytes / bytes_of(type); ++i) {
    int number = 0;
    for (int rank = 0; rank < size; ++rank) number += element(seed, rank, first + i);
    put(type, number, made.data() + i * bytes_of(type));
  }
  return made;
}

// ---- steps of collectives ----

enum class Kind : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kRing };

/// A step of one collective: its part of the regions, and what must be there in the end.
struct Step {
  Kind kind = Kind::kAllReduce;
  ncclDataType_t type = ncclFloat32;
  std::size_t bytes = 0;
  unsigned seed = 0;
  std::size_t slot = 0;
  void* request = nullptr;
  void* sending = nullptr;  // in a ring
  std::uint8_t* result = nullptr;
  Memory expected = {};
};

/// All ranks' parts of an all-gather, or a reduce-scatter, one after the other; a window of it is a step's, as
/// calcAlgoOffset() has it: here the second and third quarter, which no part is likely to begin or end with.
struct Window {
  std::size_t per_rank, begin, bytes, own_begin, own_bytes;
};

inline Window window_of(const Step& step) {
  const std::size_t per_rank = step.bytes / bytes_of(step.type) / static_cast<std::size_t>(size) * bytes_of(step.type);
  const std::size_t whole = per_rank * static_cast<std::size_t>(size);
  const std::size_t begin = whole / 4 / 8 * 8;
  const std::size_t bytes = whole / 2 / 8 * 8;
  const std::size_t first = std::max(begin, per_rank * static_cast<std::size_t>(rank_here));
  const std::size_t last = std::min(begin + bytes, per_rank * static_cast<std::size_t>(rank_here + 1));
  return {per_rank, begin, bytes, first, last > first ? last - first : 0};
}

/// What may be posted now: nothing, and NCCL asks again.
inline ncclResult_t post(Group& group, Step& step) {
  std::uint8_t* const source = group.sources.get() + step.slot * kStepBytesMax;
  std::uint8_t* const destination = group.destinations.get() + step.slot * kStepBytesMax;
  std::memset(destination, kUntouched, step.bytes);
  step.result = destination;
  if (step.kind == Kind::kAllReduce) {
    fill(step.type, step.seed, rank_here, 0, source, step.bytes);
    step.expected = sum(step.type, step.seed, 0, step.bytes);
    return library.collnet->iallreduce(group.comm, source, destination, step.bytes / bytes_of(step.type), step.type,
                                       ncclSum, group.source_handle, group.destination_handle, &step.request);
  }
  if (step.kind == Kind::kRing) {
    fill(step.type, step.seed, rank_here, 0, source, step.bytes);
    step.expected.resize(step.bytes);
    fill(step.type, step.seed, node_after(rank_here, -1), 0, step.expected.data(), step.bytes);
    void* into = destination;
    int tag = static_cast<int>(step.seed);
    const ncclResult_t result =
        library.net->irecv(group.from_previous, 1, &into, &step.bytes, &tag, nullptr, nullptr, &step.request);
    if (result != ncclSuccess) return result;
    return library.net->isend(group.to_next, source, step.bytes, tag, nullptr, nullptr, &step.sending);
  }
  const Window window = window_of(step);
  const std::size_t first = window.begin / bytes_of(step.type);
  if (step.kind == Kind::kAllGather) {
    fill(step.type, step.seed, rank_here, window.own_begin / bytes_of(step.type), source, window.own_bytes);
    step.expected.resize(window.bytes);
    for (std::size_t i = 0; i < window.bytes / bytes_of(step.type); ++i) {
      const std::size_t at = window.begin + i * bytes_of(step.type);
      put(step.type, element(step.seed, static_cast<int>(at / window.per_rank), first + i),
          step.expected.data() + i * bytes_of(step.type));
    }
    ncclNetSGE_v11_t part{.mhandle = group.destination_handle, .address = destination, .size = window.bytes};
    return library.collnet->iallgather(group.comm, source, 1, &part, window.per_rank, window.begin, window.bytes,
                                       group.source_handle, &step.request);
  }
  fill(step.type, step.seed, rank_here, first, source, window.bytes);
  step.expected = sum(step.type, step.seed, window.own_begin / bytes_of(step.type), window.own_bytes);
  ncclNetSGE_v11_t part{.mhandle = group.source_handle, .address = source, .size = window.bytes};
  return library.collnet->ireducescatter(group.comm, 1, &part, destination, window.per_rank, window.begin, window.bytes,
                                         step.type, ncclSum, group.destination_handle, &step.request);
}

/// How a step ends.
inline ncclResult_t finish(Step& step, int* bytes) {
  if (step.kind != Kind::kRing) return await(step.request, bytes);
  int received = 0;
  int sent = 0;
  while (received == 0 || sent == 0) {
    ncclResult_t result = received == 0 ? library.net->test(step.request, &received, bytes) : ncclSuccess;
    if (result == ncclSuccess && sent == 0) result = library.net->test(step.sending, &sent, nullptr);
    if (result != ncclSuccess) return result;
    pause();
  }
  return ncclSuccess;
}

/// Runs steps in order, as many in flight as NCCL has, and compares the results. Ends at the first failure. At
/// `when` calls `meanwhile`, with steps in flight.
inline ncclResult_t run(Group& group, std::vector<Step> steps, std::size_t when = 0,
                        const std::function<void(const Step&)>& meanwhile = {}) {
  std::size_t posted = 0;
  for (std::size_t done = 0; done < steps.size(); ++done) {
    while (posted < steps.size() && posted < done + kSteps) {
      Step& step = steps[posted];
      step.slot = posted % kSteps;
      if (const ncclResult_t result = post(group, step); result != ncclSuccess) return result;
      if (step.request == nullptr) break;
      ++posted;
    }
    Step& step = steps[done];
    if (done == when && meanwhile) meanwhile(step);
    int bytes = 0;
    if (const ncclResult_t result = finish(step, &bytes); result != ncclSuccess) return result;
    if (std::memcmp(step.result, step.expected.data(), step.expected.size()) != 0) {
      die("a wrong result in step " + std::to_string(done));
    }
    if (std::any_of(step.result + step.expected.size(), step.result + step.bytes,
                    [](std::uint8_t byte) { return byte != kUntouched; })) {
      die("more than the result of step " + std::to_string(done) + " was written");
    }
    if (step.kind == Kind::kAllReduce && static_cast<std::size_t>(bytes) != step.bytes) die("a wrong size");
  }
  return ncclSuccess;
}

constexpr std::array kTypes{ncclFloat32, ncclFloat16, ncclBfloat16, ncclInt32, ncclUint32,
                            ncclInt8,    ncclUint8,   ncclInt64,    ncclUint64};

}  // namespace nccl
