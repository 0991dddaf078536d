#include "answer_batch.hpp"

#include <utility>

namespace wiresum::soft_switch {
namespace {

constexpr std::size_t kBatchMax = 64;
/// The number of times that a device without buffers is asked again.
constexpr int kBufferTries = 1000;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

AnswerBatch::AnswerBatch(transport::Transport& transport, Resolve resolve)
    : transport_(transport), resolve_(std::move(resolve)) {}

void AnswerBatch::add(const dataplane::Decision& decision, std::uint8_t port, bool marked) noexcept {
  const std::uint8_t receiver = decision.verdict == dataplane::Verdict::kMulticast ? wire::kEveryone
                                : decision.verdict == dataplane::Verdict::kRaise   ? wire::kParent
                                                                                   : decision.worker;
  const Route route{.job = decision.job, .port = port, .receiver = receiver, .marked = marked};
  if (route != route_ || count_ == buffers_.size()) flush();
  if (count_ == 0) {
    // The rest of a train would leave as a message of its own.
    const std::size_t train = transport_.train_packets(wire::kHeaderBytes + decision.payload.size());
    buffers_ = find_buffers(transport::whole_trains(kBatchMax, train));
    route_ = route;
  }
  if (buffers_.empty()) {
    ++lost_;
  } else {
    decision.write(buffers_[count_++]);
  }
}

std::span<wire::Packet> AnswerBatch::find_buffers(std::size_t wanted) noexcept {
  for (int tries = 0; tries < kBufferTries; ++tries) {
    const std::span<wire::Packet> buffers = transport_.buffers(wanted);
    if (!buffers.empty()) return buffers;
    relax();
  }
  return {};
}

void AnswerBatch::flush() noexcept {
  if (count_ == 0) return;
  Receivers receivers{};
  const std::size_t known = resolve_(route_, count_, receivers);
  if (known != 0) transport_.send(count_, std::span(receivers).first(known), route_.port, route_.marked);
  count_ = 0;
}

}  // namespace wiresum::soft_switch
