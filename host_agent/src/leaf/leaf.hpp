// One thread of a host's leaf: sums what the ranks of one host send, and sends one packet for all of them.
//
// The ranks of a job on one host are a leaf of its tree (docs/protocol.md, section 8). The leaf is the data plane of a
// switch, driven by an engine thread of one of the ranks, and reaches the others through shared memory
// (transport/shm). What it is above is the job's switch, which sees one worker; or nothing, where all ranks are on this
// host: then it is the root, and no packet leaves.
//
// To its own rank's shard it is a transport. So whoever drives that shard drives the leaf: receive() serves all ranks
// before it hands out the own rank's datagrams, wait() ends when there is something for any of them.
//
// A RESULT for all is not copied. The data plane's cells lie in memory that all ranks can read; the leaf writes the
// header before the cell's words, and tells each rank where it is. A cell is written to again only when somebody
// contributes to the slot's next round but one, and so when all ranks have read this one (dataplane.cpp, "why two cells
// are enough"). After a move a rank is halted before the cells are used again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "answer_batch.hpp"
#include "dataplane.hpp"
#include "process/descriptor.hpp"
#include "transport/open.hpp"
#include "transport/shm/channel.hpp"
#include "transport/shm/memory.hpp"
#include "transport/shm/shm.hpp"
#include "transport/transport.hpp"

namespace wiresum::leaf {

/// A job's part of this thread, as the switch's table has it.
struct Job {
  std::uint16_t number = 0;
  std::uint32_t key = 0;
  std::uint8_t ranks = 1;
  std::uint8_t threads = 1;  // threads of the job
  std::uint8_t thread = 0;   // number of this thread
  std::uint16_t lanes = 0;
  std::uint32_t slots = 0;  // slots of the whole lease
  dataplane::Uplink uplink{};
};

class Leaf final : public transport::Transport {
 public:
  /// `uplink` leads to the job's switch, or has no transport without one. Rank 0 of the host drives this leaf. Throws
  /// std::invalid_argument for a senseless job, std::system_error.
  Leaf(const Job& job, transport::DataPath uplink);
  ~Leaf() override;

  /// Size of the RESULTs' memory, computed from values that all ranks know.
  [[nodiscard]] static std::size_t results_bytes(std::uint16_t lanes, std::uint32_t slots) noexcept;

  /// The parts of a rank's ShmTransport, with an event of its own; the leaf keeps its own ends. Rank 0 of the host must
  /// not ask. Throws std::system_error.
  [[nodiscard]] transport::shm::Link link(std::uint8_t rank);

  // Transport, as the own rank's shard sees it
  [[nodiscard]] const char* name() const noexcept override;
  [[nodiscard]] std::size_t receive(std::span<transport::RxDatagram> out) noexcept override;
  [[nodiscard]] std::span<wire::Packet> buffers(std::size_t wanted) noexcept override;
  [[nodiscard]] std::size_t train_packets(std::size_t packet_bytes) const noexcept override;
  void send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept override;
  [[nodiscard]] bool hear(std::span<const wire::Endpoint> peers, transport::UdpSocket* group) noexcept override;
  [[nodiscard]] bool serve(const transport::JobAt& lease) noexcept override;
  /// How long the other ranks' packets wait, until this rank wants the same sum, or another rank looks.
  [[nodiscard]] std::int64_t untended_ns_max() const noexcept override;
  void wait(std::int64_t timeout_ns) noexcept override;
  void wake() noexcept override;
  [[nodiscard]] int wake_event() const noexcept override { return event_.get(); }
  [[nodiscard]] const transport::TransportStats& stats() const noexcept override { return own_->stats(); }
  [[nodiscard]] int take_error() noexcept override;

  /// True if the ranks have sent, or will get, something for which wait() would not wait.
  [[nodiscard]] bool has_packet() const noexcept;
  /// Answers that were lost since a rank was too far behind; its timers repair the loss.
  [[nodiscard]] std::uint64_t lost() const noexcept { return lost_ + (batch_ != nullptr ? batch_->lost() : 0); }
  [[nodiscard]] const dataplane::JobCounters& counters() const noexcept { return plane_.counters(job_.number); }

 private:
  struct Rank {
    transport::shm::Memory channel;
    process::Descriptor event;
    transport::shm::LeafEnd end;
  };

  void serve_ranks() noexcept;
  void serve_uplink() noexcept;
  void answer(const dataplane::Decision& decision, bool marked) noexcept;
  void post_to_all(const dataplane::Decision& decision, bool marked) noexcept;
  void copy_to(std::size_t rank, const dataplane::Decision& decision, bool marked) noexcept;
  void sleep(std::int64_t timeout_ns) noexcept;

  Job job_;
  const transport::shm::Shape shape_;
  const std::size_t stride_;  // bytes from a cell's lanes to the next one's
  transport::DataPath path_;
  transport::Transport* const uplink_;  // the transport of path_
  process::Descriptor event_;           // ends wait(); the uplink's own event, where there is one
  transport::shm::Memory results_;      // a line, then the cells' lanes
  dataplane::Dataplane plane_;
  std::vector<Rank> ranks_;
  std::unique_ptr<soft_switch::AnswerBatch> batch_;  // answers to the parent, where there is one
  std::unique_ptr<transport::shm::ShmTransport> own_;
  std::array<transport::shm::Lent, 64> lent_{};
  std::array<dataplane::Arrival, 256> arrivals_{};
  std::array<transport::RxDatagram, 256> datagrams_{};
  std::uint64_t lost_ = 0;
};

}  // namespace wiresum::leaf
