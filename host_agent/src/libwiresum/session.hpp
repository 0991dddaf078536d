// A worker's membership in one job, as the C interface has it: a data path (engine::Engine) and a conversation with
// the sidecar, which joins and attends.
//
// One thread reads what the sidecar says, and answers at once what it asks. So the end of either is known to the other
// as soon as the kernel has closed its sockets. What fails first is the cause, and stays.
//
// A forked child has the object, but neither threads nor sidecar: there everything is refused, and nothing destroyed.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.hpp"
#include "libwiresum/channel.hpp"
#include "libwiresum/error.hpp"
#include "transport/udp/socket.hpp"

namespace wiresum::capi {

struct JoinRequest {
  std::string job;
  int rank = 0;
  int world_size = 1;
  bool queue = true;
  std::map<std::string, std::string, std::less<>> settings;  // WIRESUM_..., beside the environment
};

/// What a caller asks for: engine::Request without what the session knows.
struct Collective {
  enum class Kind : std::uint8_t { kAllReduce = 1, kReduce, kReduceScatter, kBroadcast, kAllGather, kBarrier };
  Kind kind = Kind::kBarrier;
  numeric::Dtype dtype = numeric::Dtype::kI32;
  bool average = false;
  int root = -1;
  std::vector<worker::Region> regions;
};

class Session {
 public:
  /// Joins, and proves that packets pass both ways. Throws Error, or what the standard library throws.
  explicit Session(const JoinRequest& request);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world_size() const noexcept { return world_size_; }
  void set_timeout(std::chrono::nanoseconds timeout) noexcept { timeout_ns_.store(timeout.count()); }

  /// Throws Error.
  [[nodiscard]] std::shared_ptr<engine::Operation> submit(Collective collective);
  /// Returns if the operation, which is done, has succeeded; throws the Error that ended it otherwise.
  void check(const engine::Operation& operation);
  [[nodiscard]] engine::EngineStats stats() const;
  [[nodiscard]] std::uint64_t operations() const noexcept { return operations_.load(); }

  /// Ends the job for everybody.
  void abort(const std::string& reason);
  /// Idempotent; bounded.
  void leave() noexcept;

  [[nodiscard]] bool is_forked() const noexcept;
  /// Throws Error in a forked child.
  void check_process() const;

 private:
  struct Grants {
    std::vector<engine::AggregatorConfig> aggregators;
    std::optional<Line> joined;  // once all have been granted
  };

  Line await_grants();
  void open_data_path(const Line& joined);
  void greet(std::chrono::milliseconds timeout);

  // The thread that reads.
  void attend() noexcept;
  void listen();
  /// It has ended: of this.
  void hang_up(const Error& error);
  void take(const Line& line);
  void bind(const Line& line);
  void answer_state(const Line& line);
  void add_aggregator(const Line& line);

  /// Was this the first failure?
  bool fail(const Error& error);
  [[nodiscard]] std::optional<Error> failure() const;
  /// Asks the sidecar to put a failure into words, and waits for that. Returns what the session has failed with.
  Error ask_why(const Line& question);

  const int owner_;  // the process that the threads are in
  const std::string job_;
  std::string python_;
  Channel channel_;
  std::thread attendant_;

  mutable std::mutex mutex_;  // of all that follows, up to the empty line
  std::condition_variable changed_;
  Grants grants_;
  std::vector<std::vector<transport::UdpSocket>> sockets_;
  std::optional<std::chrono::milliseconds> join_timeout_;  // once the sidecar has said it
  std::string sidecar_process_;
  std::optional<Error> failure_;
  const Error no_memory_;  // made before it is needed
  bool hung_up_ = false;
  std::unique_ptr<engine::Engine> engine_;

  int rank_ = 0;
  int world_size_ = 1;
  std::uint8_t lane_bits_ = 32;
  bool sparse_ = true;
  bool greeted_ = false;
  bool left_ = false;
  std::atomic<std::int64_t> timeout_ns_;
  std::atomic<std::uint64_t> operations_{0};
};

}  // namespace wiresum::capi
