// One node of a program over NCCL: nccl.hpp.
//
//   node LIBRARY FOLDER RANK SIZE SCENARIO [ARGUMENT]
//
// It prints what the test waits for.
#include <signal.h>
#include <sys/wait.h>

#include <iostream>
#include <map>
#include <random>

#include "nccl.hpp"

namespace {

using namespace nccl;

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
  say(std::to_string(group.connected) + " " + (group.connected == ncclSuccess ? "" : last_warning));
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
  say(std::to_string(result) + " " + last_warning);
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
    if (result == ncclSuccess || last_warning.find(text) == std::string::npos) die(std::string("expected: ") + text);
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

// ---- random sequences ----

enum class Fault : std::uint8_t {
  kNone,
  kDies,         // amid steps
  kCloses,       // amid steps, after those in flight
  kAborts,       // with steps in flight, from another thread
  kForks,        // with steps in flight
  kLosesSwitch,  // the test starts the switch anew, amid steps
  kDiffers,      // in a setting, when connecting
  kDiesConnecting,
};

/// Of 1,000 sequences. The others wait half a minute for a node that dies before it has asked to join.
Fault draw_fault(unsigned per_mille) {
  constexpr std::array kUpTo{500u, 600u, 700u, 800u, 890u, 900u, 998u, 1000u};
  return static_cast<Fault>(std::ranges::upper_bound(kUpTo, per_mille) - kUpTo.begin());
}

/// Beside each other, but for one whose connecting has a fault.
constexpr unsigned kGroups = 3;

bool breaks_connecting(Fault fault) { return fault == Fault::kDiffers || fault == Fault::kDiesConnecting; }

bool breaks_steps(Fault fault) { return fault == Fault::kDies || fault == Fault::kCloses || fault == Fault::kAborts; }

/// All nodes draw the same from a seed, and so know what the others do.
struct Sequence {
  explicit Sequence(const std::string& text) : name("r" + text + "."), draw(std::stoul(text)) {}
  unsigned below(unsigned count) { return static_cast<unsigned>(draw()) % count; }

  void run();
  Group& group(unsigned which, unsigned round);
  void drop(unsigned which);
  std::vector<Step> steps();
  /// The round in which the fault comes. False: the group is broken.
  bool do_faulty_round(Group& group);
  void be_victim(Group& group, std::vector<Step> steps);

  const std::string name;
  std::mt19937 draw;
  const Fault fault = draw_fault(below(1000));
  const bool is_victim = static_cast<int>(below(static_cast<unsigned>(size))) == rank_here;
  std::map<unsigned, Group> groups;
};

/// Number `which`, which is connected if it is not there. The last one's connecting has the fault.
Group& Sequence::group(unsigned which, unsigned round) {
  if (const auto found = groups.find(which); found != groups.end()) return found->second;
  const std::string its_name = name + std::to_string(round);
  if (which < kGroups) {
    Group& made = groups[which] = connected(its_name);
    join_ring(made, its_name);
    return made;
  }
  std::thread killer;
  if (const auto delay = std::chrono::milliseconds(below(100)); is_victim && fault == Fault::kDiesConnecting) {
    killer = std::thread([delay] {
      std::this_thread::sleep_for(delay);
      raise(SIGKILL);
    });
  }
  if (is_victim && fault == Fault::kDiffers) setenv("WIRESUM_BITS", "16", 1);
  Group& made = groups[which] = connect(its_name);
  if (is_victim && fault == Fault::kDiffers) unsetenv("WIRESUM_BITS");
  if (killer.joinable()) killer.join();
  return made;
}

std::vector<Step> Sequence::steps() {
  std::vector<Step> made(2 + below(20));
  for (Step& step : made) {
    // Of few bytes, a step's window may be empty: NCCL has no such step.
    const std::size_t bytes = below(12) == 0 ? 1 + below(300'000) : 1 + below(20'000);
    step = {.kind = static_cast<Kind>(below(4)), .type = kTypes[below(kTypes.size())], .bytes = 64 + bytes / 8 * 8};
    step.seed = below(1u << 20);
  }
  // No node completes it without the others, as a message in a ring may.
  made.back().kind = Kind::kAllReduce;
  return made;
}

/// A child has nothing of its parent's, and does not disturb it.
void fork_amid(const Group& group, const Step& step) {
  const pid_t child = fork();
  if (child == 0) {
    int done = 0;
    const bool is_ring = step.kind == Kind::kRing;
    const ncclResult_t result =
        is_ring ? library.net->test(step.request, &done, nullptr) : library.collnet->test(step.request, &done, nullptr);
    const bool is_refused = result == ncclInvalidUsage || (is_ring && done != 0);
    const bool is_closed = library.collnet->closeColl(group.comm) == ncclSuccess;
    std::_Exit(is_refused && is_closed ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) die("the child was not refused");
}

void Sequence::be_victim(Group& group, std::vector<Step> steps) {
  const std::size_t half = steps.size() / 2;
  const auto fails = [&](std::size_t when, const std::function<void(const Step&)>& meanwhile) {
    check(nccl::run(group, std::move(steps), when, meanwhile), "a step");
  };
  switch (fault) {
    case Fault::kDies:
      steps.resize(half);
      return fails(half - 1, [](const Step&) { raise(SIGKILL); });
    case Fault::kForks:
      return fails(half, [&group](const Step& step) { fork_amid(group, step); });
    case Fault::kLosesSwitch:
      return fails(half, [](const Step&) { say("switch"); });
    case Fault::kAborts:
      for (std::size_t i = 0; i < std::min(half, kSteps); ++i) {
        steps[i].slot = i;
        check(post(group, steps[i]), "post");
      }
      return;
    default:
      steps.resize(half);
      return fails(0, {});
  }
}

bool Sequence::do_faulty_round(Group& group) {
  if (breaks_connecting(fault)) {
    if (fault == Fault::kDiffers && group.connected != ncclRemoteError) die("nodes that differ were connected");
    // Where one has died, all may have been connected before.
    if (group.connected == ncclSuccess && nccl::run(group, {{.bytes = 64}}) == ncclSuccess) die("a sum without a node");
    return false;
  }
  std::vector<Step> all = steps();
  if (is_victim) {
    be_victim(group, std::move(all));
    return !breaks_steps(fault);
  }
  const ncclResult_t result = nccl::run(group, std::move(all));
  if (!breaks_steps(fault)) check(result, "a step");
  if (breaks_steps(fault) && result != ncclRemoteError) die("a step ended with " + std::to_string(result));
  return !breaks_steps(fault);
}

/// From another thread, as NCCL's proxy does it.
void Sequence::drop(unsigned which) {
  const auto dropped = groups.extract(which);
  if (dropped.mapped().comm != nullptr) std::thread([&dropped] { close(dropped.mapped()); }).join();
}

void Sequence::run() {
  const unsigned rounds = 1 + below(3);
  const unsigned fault_round = fault == Fault::kNone ? rounds : below(rounds);
  for (unsigned round = 0; round < rounds; ++round) {
    const bool is_faulty = round == fault_round;
    const unsigned which = is_faulty && breaks_connecting(fault) ? kGroups : below(kGroups);
    Group& used = group(which, round);
    bool is_whole = true;
    if (is_faulty) {
      is_whole = do_faulty_round(used);
    } else {
      check(nccl::run(used, steps()), "a step");
    }
    if (!is_whole || below(3) == 0) drop(which);
    if (!is_whole && (fault == Fault::kDies || fault == Fault::kDiesConnecting)) break;
  }
  while (!groups.empty()) drop(groups.begin()->first);
}

/// For each seed that the test writes; says which fault there was.
void sequences(const std::string& /*none*/) {
  for (std::string seed; std::getline(std::cin, seed);) {
    Sequence sequence(seed);
    sequence.run();
    say(std::to_string(static_cast<int>(sequence.fault)));
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 6) return 2;
  folder = arguments[2];
  rank_here = std::atoi(arguments[3]);
  size = std::atoi(arguments[4]);
  const std::map<std::string, std::function<void(const std::string&)>> scenarios{
      {"sums", sums}, {"many", many},     {"bits", bits},       {"connects", connects},
      {"ends", ends}, {"aborts", aborts}, {"misuses", misuses}, {"sequences", sequences},
  };
  const auto scenario = scenarios.find(arguments[5]);
  if (scenario == scenarios.end()) return 2;
  load(arguments[1]);
  scenario->second(count > 6 ? arguments[6] : "");
  check(library.collnet->finalize(library.context), "finalize of collnet");
  check(library.net->finalize(nullptr), "finalize of net");
  return 0;
}
