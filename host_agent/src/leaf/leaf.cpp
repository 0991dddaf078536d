#include "leaf/leaf.hpp"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace wiresum::leaf {
namespace {

namespace shm = transport::shm;

/// The packets ahead for which cells are prefetched, by about the latency of memory.
constexpr std::size_t kPrefetchAhead = 4;
/// The time between looks at the ranks' channels during the uplink's sleep, which their packets cannot end.
constexpr std::int64_t kPollNs = 50'000;

std::size_t packet_bytes(const Job& job) { return wire::kHeaderBytes + job.lanes * wire::kWordBytes; }

dataplane::SwitchSizes sizes_of(std::uint16_t lanes, std::uint32_t slots) {
  return {.slots = slots, .lanes_max = lanes, .jobs_max = wire::kJobNumbers};
}

/// The endpoint of a rank's channel for the data plane: no other sender can have it.
wire::Endpoint rank_endpoint(std::size_t rank) {
  return {.address = static_cast<std::uint32_t>(rank + 1), .port = wire::kSwitchPort};
}

dataplane::JobEntry entry_of(const Job& job) {
  dataplane::JobEntry entry{.job = job.number,
                            .key = job.key,
                            .workers = job.ranks,
                            .threads = job.threads,
                            .port_offset = 0,
                            .lanes = job.lanes,
                            .slot_base = 0,
                            .slots = job.slots};
  entry.uplink = job.uplink;
  for (std::size_t rank = 0; rank < job.ranks; ++rank) entry.endpoints[rank] = rank_endpoint(rank);
  return entry;
}

process::Descriptor copy_of(int descriptor) {
  process::Descriptor copy(dup(descriptor));
  if (!copy.valid()) throw std::system_error(errno, std::generic_category(), "cannot share a descriptor");
  return copy;
}

}  // namespace

std::size_t Leaf::results_bytes(std::uint16_t lanes, std::uint32_t slots) noexcept {
  return shm::kLineBytes + std::size_t{2} * slots * dataplane::Dataplane::stride(sizes_of(lanes, slots));
}

Leaf::Leaf(const Job& job, transport::DataPath uplink)
    : job_(job),
      shape_(packet_bytes(job)),
      stride_(dataplane::Dataplane::stride(sizes_of(job.lanes, job.slots))),
      path_(std::move(uplink)),
      uplink_(path_.transport.get()),
      event_(uplink_ != nullptr && uplink_->wake_event() >= 0 ? copy_of(uplink_->wake_event()) : shm::make_event()),
      results_(results_bytes(job.lanes, job.slots), true),
      plane_(sizes_of(job.lanes, job.slots), results_.data() + shm::kLineBytes) {
  if (job.uplink.exists() != (uplink_ != nullptr)) {
    throw std::invalid_argument("a leaf below a switch has a transport to it, and no other has one");
  }
  const dataplane::JobEntry entry = entry_of(job);
  if (const char* objection = plane_.objection(entry)) throw std::invalid_argument(objection);
  if (job.thread >= job.threads) throw std::invalid_argument("a leaf's thread is one of the job's");
  static_cast<void>(plane_.admit(entry));
  if (uplink_ != nullptr) {
    batch_ = std::make_unique<soft_switch::AnswerBatch>(
        *uplink_,
        [this](const soft_switch::AnswerBatch::Route&, std::size_t, soft_switch::AnswerBatch::Receivers& receivers) {
          const wire::Endpoint parent = job_.uplink.parent;
          receivers[0] = {parent.address, static_cast<std::uint16_t>(parent.port + job_.thread)};
          return std::size_t{1};
        });
  }
  for (std::uint8_t rank = 0; rank < job.ranks; ++rank) {
    shm::Memory channel(shape_.channel_bytes(), false);
    process::Descriptor event = shm::make_event();
    shm::LeafEnd end(channel.data(), shape_, event_.get(), event.get());
    ranks_.push_back({.channel = std::move(channel), .event = std::move(event), .end = end});
  }
  own_ = std::make_unique<shm::ShmTransport>(link(0), packet_bytes(job));
}

Leaf::~Leaf() = default;

shm::Link Leaf::link(std::uint8_t rank) {
  assert(rank < ranks_.size());
  const Rank& at = ranks_[rank];
  return {.channel = shm::Memory(copy_of(at.channel.descriptor()), shape_.channel_bytes(), false),
          .results = shm::Memory(copy_of(results_.descriptor()), results_.size(), true),
          .event = copy_of(at.event.get()),
          .leaf = copy_of(event_.get())};
}

bool Leaf::serve(const transport::JobAt& lease) noexcept {
  Job job = job_;
  job.number = lease.job;
  job.key = lease.key;
  if (uplink_ != nullptr) job.uplink = {.parent = lease.parent, .worker = lease.host};
  static_cast<void>(plane_.evict(job_.number));
  const bool can = plane_.admit(entry_of(job));
  if (can) {
    job_ = job;
  } else {
    static_cast<void>(plane_.admit(entry_of(job_)));
  }
  return can;
}

// ---- Serving ----

void Leaf::serve_ranks() noexcept {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    wire::Endpoint source = rank_endpoint(rank);
    source.port = static_cast<std::uint16_t>(source.port + job_.thread);
    const std::size_t count = ranks_[rank].end.receive(lent_);
    for (std::size_t i = 0; i < count; ++i) arrivals_[i] = dataplane::read(source, job_.thread, lent_[i].bytes);
    for (std::size_t i = 0; i < count; ++i) {
      if (i + kPrefetchAhead < count) plane_.prefetch(arrivals_[i + kPrefetchAhead]);
      // The parent alone may answer.
      if (!dataplane::is_answer(arrivals_[i])) answer(plane_.handle(arrivals_[i]), false);
    }
  }
}

void Leaf::serve_uplink() noexcept {
  const std::size_t count = uplink_->receive(datagrams_);
  for (std::size_t i = 0; i < count; ++i) {
    arrivals_[i] = dataplane::read(datagrams_[i].source, job_.thread, datagrams_[i].bytes);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kPrefetchAhead < count) plane_.prefetch(arrivals_[i + kPrefetchAhead]);
    if (dataplane::is_answer(arrivals_[i])) answer(plane_.handle(arrivals_[i]), datagrams_[i].marked);
  }
}

void Leaf::answer(const dataplane::Decision& decision, bool marked) noexcept {
  switch (decision.verdict) {
    case dataplane::Verdict::kDrop:
    case dataplane::Verdict::kHold:
      return;
    case dataplane::Verdict::kRaise:
      batch_->add(decision, 0, marked);
      return;
    case dataplane::Verdict::kResend:
      copy_to(decision.worker, decision, marked);
      return;
    case dataplane::Verdict::kMulticast:
      post_to_all(decision, marked);
      return;
  }
}

void Leaf::post_to_all(const dataplane::Decision& decision, bool marked) noexcept {
  // A RESULT without words lies before its cell's, too, since a channel has few copies.
  const std::size_t offset = shm::kLineBytes + decision.answer.cell * stride_ - std::size_t{wire::kHeaderBytes};
  assert(decision.payload.empty() || decision.payload.data() == results_.data() + offset + wire::kHeaderBytes);
  wire::encode(decision.answer, std::span<std::byte, wire::kHeaderBytes>(results_.data() + offset, wire::kHeaderBytes));
  for (Rank& rank : ranks_) {
    if (!rank.end.post(offset, wire::kHeaderBytes + decision.payload.size(), marked)) ++lost_;
  }
}

void Leaf::copy_to(std::size_t rank, const dataplane::Decision& decision, bool marked) noexcept {
  shm::LeafEnd& end = ranks_[rank].end;
  wire::Packet packet{.data = end.copy(), .bytes = 0};
  if (packet.data == nullptr) {
    ++lost_;
    return;
  }
  decision.write(packet);
  end.post_copy(packet.bytes, marked);
}

// ---- As the own rank's transport ----

const char* Leaf::name() const noexcept { return uplink_ != nullptr ? uplink_->name() : own_->name(); }

std::size_t Leaf::receive(std::span<transport::RxDatagram> out) noexcept {
  if (uplink_ != nullptr) serve_uplink();
  serve_ranks();
  for (Rank& rank : ranks_) rank.end.flush();
  if (batch_ != nullptr) batch_->flush();
  return own_->receive(out);
}

std::span<wire::Packet> Leaf::buffers(std::size_t wanted) noexcept { return own_->buffers(wanted); }

std::size_t Leaf::train_packets(std::size_t packet_bytes) const noexcept { return own_->train_packets(packet_bytes); }

void Leaf::send(std::size_t count, std::span<const wire::Endpoint> to, std::uint8_t port, bool marked) noexcept {
  own_->send(count, to, port, marked);
}

bool Leaf::hear(std::span<const wire::Endpoint> peers, transport::UdpSocket* group) noexcept {
  return uplink_ != nullptr ? uplink_->hear(peers, group) : group == nullptr;
}

std::int64_t Leaf::untended_ns_max() const noexcept {
  return uplink_ != nullptr ? std::min(uplink_->untended_ns_max(), transport::kDeviceUntendedNsMax)
                            : transport::kDeviceUntendedNsMax;
}

bool Leaf::has_packet() const noexcept {
  return own_->has_datagram() ||
         std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.end.has_packet(); });
}

void Leaf::wait(std::int64_t timeout_ns) noexcept {
  for (const Rank& rank : ranks_) rank.end.bell().sleep(shm::Bell::kForPackets);
  if (!has_packet()) sleep(timeout_ns);
  for (const Rank& rank : ranks_) rank.end.bell().awake();
}

void Leaf::sleep(std::int64_t timeout_ns) noexcept {
  if (uplink_ == nullptr) {
    shm::await_event(event_.get(), timeout_ns);
  } else if (uplink_->wake_event() >= 0) {
    uplink_->wait(timeout_ns);
  } else {
    uplink_->wait(timeout_ns < 0 ? kPollNs : std::min(timeout_ns, kPollNs));
  }
}

void Leaf::wake() noexcept {
  if (uplink_ != nullptr) {
    uplink_->wake();
  } else {
    shm::write_event(event_.get());
  }
}

int Leaf::take_error() noexcept { return uplink_ != nullptr ? uplink_->take_error() : 0; }

}  // namespace wiresum::leaf
