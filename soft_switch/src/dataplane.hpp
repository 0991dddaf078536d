// What the switch does with a packet: docs/protocol.md, section 3, as a sans-IO state machine.
//
// One instance serves one thread: packets of a slot always arrive on the same UDP port, and a port belongs to
// one thread, so no cell is ever shared. No socket, no clock, no allocation after construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "wire/packet.hpp"

namespace wiresum::dataplane {

/// Sizes of a switch, fixed at start.
struct SwitchSizes {
  std::uint32_t slots = 4096;
  std::uint16_t lanes_max = 360;
  std::uint16_t jobs_max = wire::kJobNumbers;  // job numbers 0..jobs_max-1
};

/// The parent of a switch that is not the root of a job's tree: the switch sends it its sums, and hears the job's.
struct Uplink {
  wire::Endpoint parent{};  // address and base port: thread t of the job talks to port + t. Port 0: this is the root
  std::uint8_t worker = 0;  // the switch's number at the parent

  [[nodiscard]] bool exists() const noexcept { return parent.port != 0; }
};

/// One admitted job, as the controller writes it into the admission and multicast tables. A worker of the job at this
/// switch is a host, or a switch below this one.
struct JobEntry {
  std::uint16_t job = 0;
  std::uint32_t key = 0;     // not 0, and different from all earlier jobs' with these slots
  std::uint8_t workers = 0;  // 1..32; 31 at most where there is a parent
  std::uint8_t threads = 1;  // a power of two <= 16, divides slots
  /// Thread t of the job talks to the switch's port number port_offset + t: jobs with few threads use different ports,
  /// and all threads of the switch have work. The endpoints below are thread 0's, whatever the offset.
  std::uint8_t port_offset = 0;
  std::uint16_t lanes = 0;
  std::uint32_t slot_base = 0;
  std::uint32_t slots = 0;  // a power of two
  /// Address and base port of each worker; thread t of the worker sends from port + t, and listens there.
  std::array<wire::Endpoint, wire::kSwitchWorkersMax> endpoints{};
  /// A multicast group, and base port, that all workers hear: a completed cell's RESULT is sent once, and the network
  /// copies it. Port 0: each worker is sent a copy of its own.
  wire::Endpoint results_group{};
  Uplink uplink{};
};

/// The contributors and receivers of a job, as in the entries of a P4 switch's tables. Bitmaps are of workers.
struct Admission {
  std::array<std::uint32_t, wire::kThreadsMax> contributors{};    // by thread
  std::array<wire::Endpoint, wire::kSwitchWorkersMax> sources{};  // each worker's thread t sends from port + t
  std::uint32_t receivers = 0;                                    // receivers of a completed cell's RESULT
};

/// The fate of a packet. kResend: a RESULT or MISSING goes to its sender. kRaise: a sum goes to the parent.
enum class Verdict : std::uint8_t { kDrop, kHold, kMulticast, kResend, kRaise };

using wire::Reason;
/// Reasons for which packets are counted. Packets that have nothing to do with Wiresum do not come here: this switch
/// has sockets.
inline constexpr auto kReasons = static_cast<std::size_t>(Reason::kOther);

struct Decision {
  Verdict verdict = Verdict::kDrop;
  Reason reason = Reason::kMalformed;
  std::uint16_t job = 0;    // of an admitted packet; otherwise 0
  std::uint8_t worker = 0;  // the sender, valid likewise
  // The answer to send, unless kDrop or kHold. Its payload is the cell's, which the next packet may change.
  wire::Header answer{};
  std::span<const std::byte> payload{};  // NOLINT(readability-redundant-member-init): else g++ misses it in lists

  /// Copies the answer into `packet`.
  void write(wire::Packet& packet) const noexcept;
};

/// A datagram in the data plane's form.
struct Arrival {
  wire::Endpoint source;
  std::uint8_t port = 0;     // number of the port, counted from the switch's base port
  bool well_formed = false;  // otherwise the fields below are empty
  wire::Header header;
  std::span<const std::byte> payload;
};

/// True for packets that only a parent may send: RESULT, or MISSING.
[[nodiscard]] bool is_answer(const Arrival& arrival) noexcept;

[[nodiscard]] Arrival read(wire::Endpoint source, std::uint8_t port, std::span<const std::byte> datagram) noexcept;

struct JobCounters {
  std::array<std::uint64_t, kReasons> packets{};
  std::uint64_t results = 0;  // cells completed
  std::array<std::uint32_t, wire::kSwitchWorkersMax>
      tensor_last{};  // tag of the latest collective that each worker has come to
  std::array<std::uint64_t, wire::kSwitchWorkersMax> contributions{};

  /// Notes that `more` contributions of a worker have come, the latest of them to this collective. Collectives overlap,
  /// and packets overtake each other: the last to come need not be of the latest.
  void add_contributions(std::size_t worker, std::uint64_t more, std::uint32_t tensor) noexcept {
    if (more == 0) return;
    if (contributions[worker] == 0 || wire::is_later_collective(tensor, tensor_last[worker])) {
      tensor_last[worker] = tensor;
    }
    contributions[worker] += more;
  }
};

class Dataplane {
 public:
  /// Throws std::invalid_argument for senseless sizes. `lanes`, unless it is null, is memory for the lanes of all cells
  /// that outlives this object: stride(sizes) bytes for each of two cells a slot, aligned to a cache line. Others may
  /// read a completed cell's words there; a writer there changes sums, and no more.
  explicit Dataplane(const SwitchSizes& sizes, std::byte* lanes = nullptr);

  /// Bytes from a cell's lanes to the next one's: whole cache lines, with room for a header before the next lanes.
  [[nodiscard]] static std::size_t stride(const SwitchSizes& sizes) noexcept;

  /// The reason why admit() would refuse this entry, as a part of a sentence; nullptr without one.
  [[nodiscard]] const char* objection(const JobEntry& entry) const noexcept;
  /// Installs a job as a whole. Returns false, and changes nothing, if there is an objection.
  [[nodiscard]] bool admit(const JobEntry& entry) noexcept;
  /// The reason why configure() would refuse this entry, likewise.
  [[nodiscard]] const char* objection(const JobEntry& entry, const Admission& admission) const noexcept;
  /// Installs a job as the tables of a P4 switch would, or changes the contributors and receivers of an installed one;
  /// lease and threads stay. A worker whose port is 0 is sent nothing. Returns false, and changes nothing, if there is
  /// an objection.
  [[nodiscard]] bool configure(const JobEntry& entry, const Admission& admission) noexcept;
  /// Copies the cells of these slots from another data plane of the same sizes.
  void take_cells(const Dataplane& from, std::uint32_t slot_base, std::uint32_t slots) noexcept;
  /// Removes all jobs, and makes all cells as they were at the start. Counters stay.
  void reset() noexcept;
  /// Removes a job; its packets are unknown from now on. Returns false if there is none.
  bool evict(std::uint16_t job) noexcept;

  /// Prefetches the memory that handle() will need for this packet. Call it some packets ahead, since the cells of a
  /// large lease are not in the near caches.
  void prefetch(const Arrival& arrival) const noexcept;
  [[nodiscard]] Decision handle(const Arrival& arrival) noexcept;

  [[nodiscard]] const JobEntry* find(std::uint16_t job) const noexcept;
  /// The receivers of an admitted job's completed cells, as a bitmap.
  [[nodiscard]] std::uint32_t receivers(std::uint16_t job) const noexcept;
  /// A job's counters: zeros if it was never admitted; kept after evict until the number is admitted again.
  [[nodiscard]] const JobCounters& counters(std::uint16_t job) const noexcept;
  /// Counters of packets that belong to no job, by reason.
  [[nodiscard]] const JobCounters& stray() const noexcept;

 private:
  struct Cell {
    std::uint32_t owner = 0;  // the key of the job whose contribution began the round; 0: nobody's
    std::uint32_t round = 0;
    std::uint32_t bitmap = 0;   // contributors, and wire::kParentBit: the words are the parent's RESULT
    std::uint32_t tensor = 0;   // tag of the round's first packet
    std::uint8_t exponent = 0;  // the maximum so far
    bool has_data = false;      // this round has seen DATA, so the lanes are this round's
    bool diverged = false;      // a packet of this round had another tag than the first one
  };
  struct Job {
    JobEntry entry;
    Admission admission;
    JobCounters counters;
    std::uint32_t full = 0;          // the bitmap of a cell with all workers' contributions
    std::uint32_t done = 0;          // the bitmap of a cell whose words are the job's sum; at the root the same
    std::uint32_t thread_shift = 0;  // a slot's thread is slot >> thread_shift
    bool admitted = false;
  };

  [[nodiscard]] static std::size_t index_of(const JobEntry& entry, std::uint16_t cell) noexcept;
  [[nodiscard]] const char* size_objection(const JobEntry& entry) const noexcept;
  [[nodiscard]] bool overlaps(const JobEntry& entry) const noexcept;
  void install(const JobEntry& entry, const Admission& admission) noexcept;
  enum class Relation : std::uint8_t { kOlder, kSame, kNewer };
  [[nodiscard]] static Relation relation(const Cell& cell, const wire::Header& header) noexcept;
  [[nodiscard]] Job* admission(const Arrival& arrival) noexcept;
  [[nodiscard]] bool is_from_parent(const Arrival& arrival) const noexcept;
  [[nodiscard]] static bool is_done(const Job& job, const Cell& cell) noexcept;
  /// Adds a header to its cell.
  static void note(Cell& cell, const wire::Header& header) noexcept;
  [[nodiscard]] Decision aggregate(Job& job, const wire::Header& header, std::span<const std::byte> payload) noexcept;
  [[nodiscard]] Decision answer_question(const Job& job, const wire::Header& question) noexcept;
  [[nodiscard]] Decision take_from_parent(Job& job, const wire::Header& header,
                                          std::span<const std::byte> payload) noexcept;
  /// The answer to the sender of `trigger`, whose contribution is in already.
  [[nodiscard]] Decision answer_again(const Job& job, std::size_t index, const wire::Header& trigger) noexcept;
  /// Sends the sum of this switch's workers to the parent.
  [[nodiscard]] Decision raise(const Job& job, std::size_t index, const wire::Header& trigger,
                               Reason reason) const noexcept;
  void merge(std::size_t index, std::span<const std::byte> payload, bool duplicate) noexcept;
  void make_result(const Job& job, std::size_t index, const wire::Header& trigger, Decision& decision) noexcept;
  [[nodiscard]] std::byte* lanes_at(std::size_t index) const noexcept { return lanes_ + index * lanes_stride_; }

  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };

  SwitchSizes sizes_;
  std::size_t lanes_stride_;                   // bytes from a cell's lanes to the next one's
  std::vector<Cell> cells_;                    // two for each slot: for even rounds, and for odd ones
  std::unique_ptr<std::byte[], Free> memory_;  // untouched pages cost nothing; null: others own the memory
  std::byte* lanes_;                           // lanes of each cell, in network byte order
  std::vector<Job> jobs_;                      // by job number
  JobCounters stray_;
};

}  // namespace wiresum::dataplane
