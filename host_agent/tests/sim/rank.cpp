#include "rank.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace wiresum::sim {
namespace {

constexpr double kInterruptionProbability = 0.2;
/// The same number as in a session.
constexpr TimeNs kWaitingPeriodNs = 100'000'000;
/// The wait of ShmTransport::wait(): a rank that cannot send need not look at its timers.
constexpr TimeNs kRoomNs = 1'000'000;
/// The byte that callers write.
constexpr std::byte kWritten{0xE7};

}  // namespace

Rank::Rank(const RankConfig& config, const VirtualClock& clock, Agenda& agenda, Random& random, PacketPool& packets,
           DeviceMemory& shared, Hooks hooks)
    : config_(config),
      clock_(clock),
      agenda_(agenda),
      random_(random),
      hooks_(std::move(hooks)),
      threads_(config.shards.size()) {
  std::vector<engine::Shard*> shards;
  for (std::uint32_t i = 0; i < threads_.size(); ++i) {
    open(i, packets, shared);
    threads_[i].shard = std::make_unique<engine::Shard>(
        config.shards[i], config.switch_endpoint, clock, *threads_[i].transport,
        engine::Shard::Hooks{
            .on_mail = [this, i] { rouse(i); },
            .on_completion = [this,
                              i](const worker::Completion& completion) { dispatcher_->complete_share(i, completion); },
            .on_halted = [this, i](Positions positions) { on_halted(i, std::move(positions)); },
            .on_moved =
                [](const char* objection) {
                  if (objection != nullptr) throw std::logic_error(std::string("a worker cannot move: ") + objection);
                }});
    shards.push_back(threads_[i].shard.get());
  }
  dispatcher_ = std::make_unique<engine::Dispatcher>(config.scheduler, std::move(shards), [this] { start_tasks(); });
}

void Rank::open(std::uint32_t thread, PacketPool& packets, DeviceMemory& shared) {
  Thread& mine = threads_[thread];
  const std::size_t packet_bytes = wire::kHeaderBytes + config_.shards[thread].lanes * wire::kWordBytes;
  const bool is_first = !config_.sharing.has_value() || config_.sharing->first == nullptr;
  std::unique_ptr<transport::Transport> device;
  if (is_first && (!config_.sharing.has_value() || config_.sharing->job.uplink.exists())) {
    if (config_.device_delay_max > 0)
      mine.memory = std::make_unique<DeviceMemory>(config_.device_packets, packet_bytes);
    auto made = std::make_unique<SimTransport>(
        mine.memory ? *mine.memory : shared, packets,
        [this, thread](SimTransport::Place place, const Packet& sent, wire::Endpoint to) {
          run_device(thread, place, sent, to);
        },
        [this, thread](const Packet& packet, wire::Endpoint to) { hooks_.carry(thread, packet, to); });
    mine.device = made.get();
    device = std::move(made);
  }
  if (!config_.sharing.has_value()) {
    mine.transport = std::move(device);
  } else if (is_first) {
    leaf::Job job = config_.sharing->job;
    job.thread = static_cast<std::uint8_t>(thread);
    auto made = std::make_unique<leaf::Leaf>(job, transport::DataPath{.reserved = {}, .transport = std::move(device)});
    mine.leaf = made.get();
    mine.transport = std::move(made);
  } else {
    leaf::Leaf& leaf = *config_.sharing->first->threads_[thread].leaf;
    auto made = std::make_unique<transport::shm::ShmTransport>(leaf.link(config_.sharing->index), packet_bytes);
    mine.shared = made.get();
    mine.transport = std::move(made);
  }
}

TimeNs Rank::after_stalls(TimeNs at) const noexcept {
  for (bool moved = true; moved;) {
    moved = false;
    for (const Stall& stall : config_.stalls) {
      if (stall.begin <= at && at < stall.end) {
        at = stall.end;
        moved = true;
      }
    }
  }
  return at;
}

TimeNs Rank::interruption() {
  return random_.happens(config_.interruption_max > 0 ? kInterruptionProbability : 0)
             ? random_.below(config_.interruption_max)
             : 0;
}

// ---- Engine threads ----

void Rank::arrive(std::uint32_t thread, const Packet& packet, wire::Endpoint source) {
  if (dead_) return;
  Thread& mine = threads_[thread];
  mine.device->arrive(packet, source);
  if (mine.running || mine.ended || config_.interruption_max > 0 || after_stalls(clock_.now()) != clock_.now()) {
    rouse(thread);
    return;
  }
  // An event would come after those of all other hosts, perhaps thousands, when this host's memory has left the near
  // caches.
  mine.running = true;
  run(thread, Step::kMail);
}

void Rank::run_device(std::uint32_t thread, SimTransport::Place place, const Packet& sent, wire::Endpoint to) {
  if (config_.device_delay_max == 0) {
    threads_[thread].device->read(place, sent, to);
    return;
  }
  // The network device goes on if its process is held up or dies.
  agenda_.at(clock_.now() + random_.below(config_.device_delay_max), [this, thread, place, sent, to] {
    SimTransport& transport = *threads_[thread].device;
    const bool was_full = !transport.has_buffer();
    transport.read(place, sent, to);
    if (was_full && !dead_) rouse(thread);
  });
}

void Rank::look(std::uint32_t thread) {
  if (!dead_ && has_something(threads_[thread])) rouse(thread);
}

bool Rank::has_something(const Thread& thread) const noexcept {
  if (thread.leaf != nullptr) return thread.leaf->has_packet();
  return thread.shared != nullptr && thread.shared->is_ready();
}

void Rank::rouse(std::uint32_t thread) {
  Thread& mine = threads_[thread];
  if (mine.ended) return;
  if (mine.running) {
    mine.again = true;
    return;
  }
  mine.running = true;
  when_awake(clock_.now(), [this, thread] { run(thread, Step::kMail); });
}

void Rank::run(std::uint32_t thread, Step step) {
  Thread& mine = threads_[thread];
  for (; step != Step::kEnd; step = static_cast<Step>(static_cast<unsigned>(step) + 1)) {
    if (mine.ended) return;
    if (const TimeNs held_up = interruption(); held_up > 0) {
      when_awake(clock_.now() + held_up, [this, thread, step] { run(thread, step); });
      return;
    }
    switch (step) {
      case Step::kMail:
        mine.again = false;
        mine.shard->take_mail();
        break;
      case Step::kReceive:
        mine.shard->receive();
        if (hooks_.stepped) hooks_.stepped(thread);
        break;
      case Step::kTransmit:
        mine.shard->transmit();
        if (hooks_.stepped) hooks_.stepped(thread);
        break;
      case Step::kReport:
        mine.again |= mine.shard->report();
        let_callers_write();
        break;
      case Step::kEnd:
        break;
    }
  }
  mine.running = false;
  if (mine.again) {
    rouse(thread);
  } else {
    sleep(thread);
  }
}

void Rank::sleep(std::uint32_t thread) {
  Thread& mine = threads_[thread];
  if (mine.device != nullptr && !mine.device->has_buffer()) return;  // the device will wake the thread
  const bool lacks_room = mine.shared != nullptr && mine.shared->lacks_room();
  const TimeNs next = std::max(mine.shard->next_timeout(), clock_.now() + (lacks_room ? kRoomNs : 1));
  if (next == worker::kNever || next >= mine.wake_at) return;
  mine.wake_at = next;
  agenda_.at(next, [this, thread] {
    Thread& sleeper = threads_[thread];
    if (dead_ || sleeper.wake_at > clock_.now()) return;  // superseded by an earlier wake-up
    sleeper.wake_at = worker::kNever;
    rouse(thread);
  });
}

// ---- Callers ----

void Rank::submit_at(TimeNs at, schedule::Request request, std::optional<TimeNs> timeout) {
  calls_.push_back({.at = at, .request = std::move(request), .timeout = timeout, .operation = nullptr});
  submit_next();
}

void Rank::submit_next() {
  if (submitting_ || submitted_ == calls_.size()) return;
  submitting_ = true;
  when_awake(std::max(calls_[submitted_].at, clock_.now()), [this] {
    Call& call = calls_[submitted_];
    if (call.timeout.has_value()) call.request.deadline = clock_.now() + *call.timeout;
    auto prepared = std::make_shared<engine::Dispatcher::Prepared>(dispatcher_->prepare(call.request, false));
    when_awake(clock_.now() + interruption(), [this, prepared] {
      calls_[submitted_++].operation = dispatcher_->submit(std::move(*prepared));
      submitting_ = false;
      watch_deadlines();
      submit_next();
    });
  });
}

void Rank::watch_deadlines() {
  if (watching_) return;
  watching_ = true;
  when_awake(clock_.now() + kWaitingPeriodNs, [this] {
    watching_ = false;
    dispatcher_->check_deadlines(clock_.now());
    if (dispatcher_->pending() != 0) watch_deadlines();
  });
}

void Rank::let_callers_write() {
  if (!config_.callers_write) return;
  for (Call& call : calls_) {
    if (call.written || call.operation == nullptr || !call.operation->done()) continue;
    call.written = true;
    const std::size_t bytes = numeric::element_bytes(call.request.format.dtype);
    for (const worker::Region& region : call.request.regions) {
      for (std::byte* const memory : {const_cast<std::byte*>(region.source.first()), region.destination.first()}) {
        if (memory == nullptr) continue;
        const std::span<std::byte> all(memory, region.elements * bytes);
        written_.push_back({memory, {all.begin(), all.end()}});
        std::ranges::fill(all, kWritten);
      }
    }
  }
}

Rank::~Rank() {
  // Restores memory for a comparison. An in-place collective has written twice: the bytes before the first are last.
  for (auto each = written_.rbegin(); each != written_.rend(); ++each) {
    std::ranges::copy(each->before, each->memory);
  }
}

// ---- Moves ----

void Rank::halt(std::uint32_t number) {
  when_awake(clock_.now(), [this, number] {
    move_number_ = number;
    for (Thread& thread : threads_) {
      thread.positions.reset();
      thread.shard->post_halt();
    }
  });
}

void Rank::on_halted(std::uint32_t thread, Positions positions) {
  threads_[thread].positions = std::move(positions);
  Positions all;
  for (const Thread& each : threads_) {
    if (!each.positions.has_value()) return;
    all.insert(all.end(), each.positions->begin(), each.positions->end());
  }
  hooks_.halted(move_number_, std::move(all));
}

void Rank::move(std::uint32_t number, const engine::Destination& destination, const Roles& roles) {
  const auto kept = std::make_shared<const std::pair<engine::Destination, Roles>>(destination, roles);
  when_awake(clock_.now(), [this, number, kept] {
    if (number != move_number_) return;
    const auto slots = static_cast<std::ptrdiff_t>(kept->second.size() / threads_.size());
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      const auto first = kept->second.begin() + static_cast<std::ptrdiff_t>(i) * slots;
      threads_[i].shard->post_move(kept->first, {first, first + slots});
    }
  });
}

// ---- Tasks ----

void Rank::start_tasks() {
  if (choring_) return;
  choring_ = true;
  when_awake(clock_.now(), [this] {
    choring_ = false;
    if (const std::optional<schedule::Task> task = dispatcher_->take_task()) run_task(*task);
  });
}

void Rank::run_task(const schedule::Task& task) {
  choring_ = true;
  when_awake(clock_.now() + random_.below(config_.task_max), [this, task = task] {
    const worker::Status status = task.run();
    when_awake(clock_.now() + interruption(), [this, task = task, status] {
      dispatcher_->complete_task(task, status);
      let_callers_write();
      choring_ = false;
      start_tasks();
    });
  });
}

// ---- Ending ----

void Rank::abort() { dispatcher_->fail(worker::Status::kAborted); }

void Rank::close() {
  if (closing_ || dead_) return;
  closing_ = true;
  dispatcher_->fail(worker::Status::kAborted);
  when_awake(clock_.now() + interruption(), [this] { end_threads(0); });
}

void Rank::end_threads(std::uint32_t next) {
  if (next == threads_.size()) {
    check_closed();
    return;
  }
  threads_[next].ended = true;
  threads_[next].shard->end();
  when_awake(clock_.now() + interruption(), [this, next] { end_threads(next + 1); });
}

void Rank::check_closed() {
  if (choring_) {
    when_awake(clock_.now() + 1, [this] { check_closed(); });
    return;
  }
  if (dispatcher_->pending() != 0) throw std::logic_error("a closed session has operations that will never end");
}

bool Rank::idle() const { return dead_ || (submitted_ == calls_.size() && dispatcher_->pending() == 0); }

std::vector<std::optional<worker::Status>> Rank::results() const {
  std::vector<std::optional<worker::Status>> statuses;
  for (const Call& call : calls_) {
    const bool ended = call.operation != nullptr && call.operation->done();
    statuses.push_back(ended ? std::optional(call.operation->status()) : std::nullopt);
  }
  return statuses;
}

}  // namespace wiresum::sim
