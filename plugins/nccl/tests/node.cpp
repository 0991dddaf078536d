// One node of a program over NCCL, as the plug-in sees it: the library is loaded, and its tables are called, in the
// order of NCCL's own sources (plugin/net.cc, plugin/net/net_v11.cc, transport/coll_net.cc). It knows nothing of
// Wiresum but the file's name. A folder stands for NCCL's bootstrap: there nodes leave handles for each other.
//
//   node LIBRARY FOLDER RANK SIZE SCENARIO [ARGUMENT]
//
// Each result is compared here where the sum is known, bit for bit. It prints what the test waits for.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../src/nccl_v11.h"

namespace {

constexpr std::size_t kSteps = 8;  // NCCL_STEPS
constexpr std::size_t kStepBytesMax = std::size_t{2} << 20;
constexpr std::uint8_t kUntouched = 0x5A;
constexpr std::size_t kRegionBytes = kSteps * kStepBytesMax;
using Memory = std::vector<std::uint8_t>;
using Region = std::unique_ptr<std::uint8_t[]>;

std::string folder;
int rank_here = 0;
int size = 0;
/// The last warning, as ncclGetLastError() has it.
std::string last_error;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "node %d: %s (%s)\n", rank_here, what.c_str(), last_error.c_str());
  std::_Exit(3);
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) die(std::string(what) + " failed with " + std::to_string(result));
}

void log(ncclDebugLogLevel level, unsigned long /*flags*/, const char* /*file*/, int /*line*/, const char* format,
         ...) {
  std::array<char, 1024> text{};
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text.data(), text.size(), format, arguments);
  va_end(arguments);
  if (level == NCCL_LOG_WARN) last_error = text.data();
}

// ---- NCCL's bootstrap ----

void leave(const std::string& name, const void* bytes, std::size_t count) {
  const std::string path = folder + "/" + name;
  std::ofstream(path + ".part", std::ios::binary).write(static_cast<const char*>(bytes), static_cast<long>(count));
  std::rename((path + ".part").c_str(), path.c_str());
}

Memory take(const std::string& name) {
  while (access((folder + "/" + name).c_str(), R_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::ifstream file(folder + "/" + name, std::ios::binary);
  std::ostringstream all;
  all << file.rdbuf();
  const std::string text = all.str();
  return {text.begin(), text.end()};
}

std::string own(const std::string& name, int rank) { return name + "." + std::to_string(rank); }

// ---- plugin/net.cc ----

struct Library {
  const ncclNet_v11_t* net;
  const ncclCollNet_v11_t* collnet;
  void* context = nullptr;
};

Library library;

void load(const char* path) {
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
};

/// sharedListen() and sharedConnect().
Group connect(const std::string& name) {
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

Group connected(const std::string& name) {
  Group made = connect(name);
  check(made.connected, "connect");
  return made;
}

void close(Group& group) {
  check(library.collnet->deregMr(group.comm, group.source_handle), "deregMr");
  check(library.collnet->deregMr(group.comm, group.destination_handle), "deregMr");
  check(library.collnet->closeColl(group.comm), "closeColl");
}

/// How a step's request ends. `bytes`: what the plug-in says.
ncclResult_t await(void* request, int* bytes) {
  int done = 0;
  while (true) {
    const ncclResult_t result = library.collnet->test(request, &done, bytes);
    if (result != ncclSuccess || done != 0) return result;
    std::this_thread::yield();
  }
}

// ---- elements ----

/// Small, so that every float has the exact sum of all nodes' elements.
int element(unsigned seed, int rank, std::size_t index) {
  const auto mixed =
      static_cast<std::uint32_t>(index) * 2654435761u + static_cast<std::uint32_t>(rank) * 40503u + seed * 97u;
  return static_cast<int>((mixed >> 7) % 33) - 16;
}

std::size_t bytes_of(ncclDataType_t type) {
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

bool is_float(ncclDataType_t type) { return type == ncclFloat32 || type == ncclFloat16 || type == ncclBfloat16; }

/// What a whole number up to 2,048 is in a type. Of integers it is a multiple, modulo their size: sums stay sums.
void put(ncclDataType_t type, int number, std::uint8_t* memory) {
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

void fill(ncclDataType_t type, unsigned seed, int rank, std::size_t first, std::uint8_t* memory, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes / bytes_of(type); ++i) {
    put(type, element(seed, rank, first + i), memory + i * bytes_of(type));
  }
}

Memory sum(ncclDataType_t type, unsigned seed, std::size_t first, std::size_t bytes) {
  Memory made(bytes);
  for (std::size_t i = 0; i < bytes / bytes_of(type); ++i) {
    int number = 0;
    for (int rank = 0; rank < size; ++rank) number += element(seed, rank, first + i);
    put(type, number, made.data() + i * bytes_of(type));
  }
  return made;
}

// ---- steps of collectives ----

enum class Kind : std::uint8_t { kAllReduce, kAllGather, kReduceScatter };

/// A step of one collective: its part of the regions, and what must be there in the end.
struct Step {
  Kind kind = Kind::kAllReduce;
  ncclDataType_t type = ncclFloat32;
  std::size_t bytes = 0;
  unsigned seed = 0;
  std::size_t slot = 0;
  void* request = nullptr;
  std::uint8_t* result = nullptr;
  Memory expected = {};
};

/// All ranks' parts of an all-gather, or a reduce-scatter, one after the other; a window of it is a step's, as
/// calcAlgoOffset() has it: here the second and third quarter, which no part is likely to begin or end with.
struct Window {
  std::size_t per_rank, begin, bytes, own_begin, own_bytes;
};

Window window_of(const Step& step) {
  const std::size_t per_rank = step.bytes / bytes_of(step.type) / static_cast<std::size_t>(size) * bytes_of(step.type);
  const std::size_t whole = per_rank * static_cast<std::size_t>(size);
  const std::size_t begin = whole / 4 / 8 * 8;
  const std::size_t bytes = whole / 2 / 8 * 8;
  const std::size_t first = std::max(begin, per_rank * static_cast<std::size_t>(rank_here));
  const std::size_t last = std::min(begin + bytes, per_rank * static_cast<std::size_t>(rank_here + 1));
  return {per_rank, begin, bytes, first, last > first ? last - first : 0};
}

/// What may be posted now: nothing, and NCCL asks again.
ncclResult_t post(Group& group, Step& step) {
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

/// Runs steps in order, as many in flight as NCCL has, and compares the results. Ends at the first failure.
ncclResult_t run(Group& group, std::vector<Step> steps) {
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
    int bytes = 0;
    if (const ncclResult_t result = await(step.request, &bytes); result != ncclSuccess) return result;
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

// ---- scenarios ----

/// All types and sizes of steps, over several communicators beside each other.
void sums(const std::string& count) {
  std::vector<Group> groups;
  for (int i = 0; i < std::stoi(count); ++i) groups.push_back(connected("g" + std::to_string(i)));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<Step> steps;
    unsigned seed = 1000 * static_cast<unsigned>(g);
    for (const ncclDataType_t type : kTypes) {
      for (const std::size_t bytes : {std::size_t{8}, std::size_t{64} << 10, std::size_t{256} << 10, kStepBytesMax}) {
        for (const Kind kind : {Kind::kAllReduce, Kind::kAllGather, Kind::kReduceScatter}) {
          steps.push_back({.kind = kind, .type = type, .bytes = bytes, .seed = ++seed});
        }
      }
    }
    check(run(groups[g], std::move(steps)), "a step");
  }
  for (Group& group : groups) close(group);
}

/// As many communicators beside each other, with a step of each in flight.
void many(const std::string& count) {
  std::vector<Group> groups;
  std::vector<Step> steps(static_cast<std::size_t>(std::stoi(count)), Step{.bytes = 64 << 10});
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t g = 0; g < steps.size(); ++g) groups.push_back(connected("g" + std::to_string(g)));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  for (std::size_t g = 0; g < steps.size(); ++g) {
    steps[g].seed = static_cast<unsigned>(g);
    check(post(groups[g], steps[g]), "post");
  }
  for (Step& step : steps) {
    check(await(step.request, nullptr), "test");
    if (std::memcmp(step.result, step.expected.data(), step.bytes) != 0) die("a wrong result");
  }
  for (Group& group : groups) close(group);
  say("connected in " + std::to_string(took.count()) + " s");
}

/// The test compares what comes out with Wiresum's own sums: any floats, which are rounded.
void bits(const std::string& /*none*/) {
  Group group = connected("g");
  std::mt19937 random(static_cast<unsigned>(rank_here) + 1);
  for (const ncclDataType_t type : {ncclFloat32, ncclFloat16, ncclBfloat16}) {
    constexpr std::size_t kBytes = std::size_t{256} << 10;
    for (std::size_t i = 0; i < kBytes; i += bytes_of(type)) {
      // Exponents below the largest: neither Inf nor NaN, and no sum that overflows.
      const std::uint32_t raw = static_cast<std::uint32_t>(random()) & (type == ncclFloat16    ? 0xB7FFu
                                                                        : type == ncclBfloat16 ? 0xBFFFu
                                                                                               : 0xBFFFFFFFu);
      std::memcpy(group.sources.get() + i, &raw, bytes_of(type));
    }
    leave("in." + own(std::to_string(type), rank_here), group.sources.get(), kBytes);
    void* request = nullptr;
    check(library.collnet->iallreduce(group.comm, group.sources.get(), group.destinations.get(),
                                      kBytes / bytes_of(type), type, ncclSum, nullptr, nullptr, &request),
          "iallreduce");
    check(await(request, nullptr), "test");
    leave("out." + own(std::to_string(type), rank_here), group.destinations.get(), kBytes);
  }
  if (rank_here != 0) take("closed");
  close(group);
  if (rank_here == 0) leave("closed", "", 0);
}

/// Says how connecting ended.
void connects(const std::string& /*none*/) {
  Group group = connect("g");
  say(std::to_string(group.connected) + " " + (group.connected == ncclSuccess ? "" : last_error));
  if (group.connected != ncclSuccess && group.comm != nullptr) die("a group of a failed connect");
  if (group.comm != nullptr) close(group);
}

/// The last node dies while steps are in flight, or closes; the others say what they hear.
void ends(const std::string& how) {
  Group group = connected("g");
  check(run(group, {{.bytes = kStepBytesMax}}), "a step");
  if (rank_here == size - 1) {
    std::vector<Step> steps(4);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      steps[i] = {.bytes = kStepBytesMax, .slot = i};
      check(post(group, steps[i]), "post");
    }
    if (how == "dies") {
      raise(SIGKILL);
    }
    close(group);
    return;
  }
  const ncclResult_t result = run(group, std::vector<Step>(10'000, Step{.bytes = kStepBytesMax}));
  say(std::to_string(result) + " " + last_error);
  // NCCL ends what it knows to be broken, and makes a new one.
  close(group);
}

/// Node 0 closes with requests in flight that nobody answers; all go on with another communicator.
void aborts(const std::string& /*none*/) {
  Group group = connected("first");
  if (rank_here == 0) {
    for (std::size_t i = 0; i < kSteps; ++i) {
      Step step{.bytes = kStepBytesMax, .slot = i};
      check(post(group, step), "post");
    }
  }
  if (rank_here != 0) take("closed");
  close(group);
  if (rank_here == 0) leave("closed", "", 0);
  std::fill_n(group.destinations.get(), kRegionBytes, std::uint8_t{7});
  Group second = connected("second");
  check(run(second, {{.bytes = kStepBytesMax}}), "a step");
  if (std::any_of(group.destinations.get(), group.destinations.get() + kRegionBytes,
                  [](std::uint8_t byte) { return byte != 7; })) {
    die("a closed group has written to its memory");
  }
  close(second);
}

/// A child has nothing of its parent's, and does not disturb it, however long it lives.
void forks(const std::string& /*none*/) {
  Group group = connected("g");
  Step step{.bytes = kStepBytesMax};
  check(post(group, step), "post");
  const pid_t child = fork();
  if (child == 0) {
    int done = 0;
    const bool is_refused = library.collnet->test(step.request, &done, nullptr) == ncclInvalidUsage;
    const bool is_closed = library.collnet->closeColl(group.comm) == ncclSuccess;
    std::_Exit(is_refused && is_closed ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) die("the child was not refused");
  check(await(step.request, nullptr), "test");
  check(run(group, std::vector<Step>(20, Step{.type = ncclInt32, .bytes = 64 << 10})), "a step");
  close(group);
}

/// What NCCL would never do, and what it must be told then.
void misuses(const std::string& /*none*/) {
  Group group = connected("g");
  void* request = nullptr;
  int supported = 0;
  for (int type = 0; type < 12; ++type) {
    for (int op = 0; op < 5; ++op) {
      check(library.collnet->reduceSupport(static_cast<ncclDataType_t>(type), static_cast<ncclRedOp_t>(op), &supported),
            "reduceSupport");
      const bool is_summed = op == ncclSum && std::ranges::find(kTypes, type) != kTypes.end();
      if (supported != (is_summed ? 1 : 0)) die("reduceSupport");
      const ncclResult_t result = library.collnet->iallreduce(group.comm, group.sources.get(), group.destinations.get(),
                                                              8, static_cast<ncclDataType_t>(type),
                                                              static_cast<ncclRedOp_t>(op), nullptr, nullptr, &request);
      if (result != (is_summed ? ncclSuccess : ncclInvalidArgument)) die("iallreduce");
      if (is_summed) check(await(request, nullptr), "test");
    }
  }
  const auto expect = [](ncclResult_t result, const char* text) {
    if (result == ncclSuccess || last_error.find(text) == std::string::npos) die(std::string("expected: ") + text);
  };
  void* handle = nullptr;
  expect(library.collnet->regMr(group.comm, group.sources.get(), 8, NCCL_PTR_CUDA, &handle), "GPU's memory");
  expect(library.collnet->iallreduce(group.comm, nullptr, group.destinations.get(), 8, ncclInt32, ncclSum, nullptr,
                                     nullptr, &request),
         "null pointer");
  if (request != nullptr) die("a request of a call that failed");
  check(run(group, {{.bytes = 64 << 10}}), "a step");
  close(group);
}

/// Random collectives of random communicators, and perhaps a fault, all from a seed. Every node draws the same.
void random_sequence(const std::string& text) {
  std::mt19937 draw(static_cast<unsigned>(std::stoul(text)));
  const auto below = [&draw](unsigned count) { return static_cast<unsigned>(draw()) % count; };
  const bool has_fault = below(3) == 0;
  const unsigned rounds = 2 + below(4);
  const unsigned fault_round = below(rounds);
  const int victim = static_cast<int>(below(static_cast<unsigned>(size)));
  const bool dies = below(2) == 0;
  std::map<unsigned, Group> groups;
  for (unsigned round = 0; round < rounds; ++round) {
    const unsigned which = below(3);
    if (!groups.contains(which)) groups[which] = connected("r" + text + "." + std::to_string(round));
    std::vector<Step> steps(1 + below(24));
    for (Step& step : steps) {
      // Of few bytes, a step's window may be empty: NCCL has no such step.
      const unsigned long bytes = below(8) == 0 ? 1 + below(500'000) : 1 + below(20'000);
      step = {.kind = static_cast<Kind>(below(3)), .type = kTypes[below(kTypes.size())], .bytes = 64 + bytes / 8 * 8};
      step.seed = below(1u << 20);
    }
    if (has_fault && round == fault_round && rank_here == victim) {
      steps.resize(steps.size() / 2);
      check(run(groups[which], std::move(steps)), "a step");
      if (dies) raise(SIGKILL);
      break;
    }
    const ncclResult_t result = run(groups[which], steps);
    if (has_fault && round == fault_round) {
      if (result == ncclSuccess) die("all steps were summed without a node");
      say("failed: " + last_error);
      break;
    }
    check(result, "a step");
    if (below(3) == 0) {
      close(groups[which]);
      groups.erase(which);
    }
  }
  for (auto& [name, group] : groups) close(group);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 6) return 2;
  folder = arguments[2];
  rank_here = std::atoi(arguments[3]);
  size = std::atoi(arguments[4]);
  const std::map<std::string, std::function<void(const std::string&)>> scenarios{
      {"sums", sums},     {"many", many},   {"bits", bits},       {"connects", connects},      {"ends", ends},
      {"aborts", aborts}, {"forks", forks}, {"misuses", misuses}, {"random", random_sequence},
  };
  const auto scenario = scenarios.find(arguments[5]);
  if (scenario == scenarios.end()) return 2;
  load(arguments[1]);
  scenario->second(count > 6 ? arguments[6] : "");
  check(library.collnet->finalize(library.context), "finalize of collnet");
  check(library.net->finalize(nullptr), "finalize of net");
  say("done");
  return 0;
}
