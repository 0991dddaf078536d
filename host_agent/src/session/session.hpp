// A worker's membership in one job, from joining to leaving: a data path (engine/) and a membership (membership.hpp).
// What all callers use, in C, MPI, PyTorch and Python.
//
//   join      the membership is granted slots, the data path is opened
//   greet     the first all-reduce shows that packets pass both ways
//   work      submit, wait
//   fail      the first failure is recorded, since it is the cause of the others
//   explain   the membership says why the data path has failed, and the other workers are told
//   leave
//
// Any thread may call. A failure is read without a lock, and no lock is held while the membership is called.
//
// A forked child has the object, but neither threads nor membership: there every call is refused, and nothing is
// destroyed.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "process/home.hpp"
#include "session/failure.hpp"
#include "session/membership.hpp"

namespace wiresum::session {

class Session;

/// Chunks of a session's first all-reduce for each thread: full packets, and two rounds in half of the slots. A slot's
/// first round shows how late the workers are, the second one measures the path.
inline constexpr std::size_t kGreetingChunksPerThread = worker::kSlotsSpreadMax * 3 / 2;

/// A collective that was started, as callers hold it. The memory of its regions must stay valid until it is done.
struct Call {
  std::shared_ptr<Session> session;
  std::shared_ptr<engine::Operation> operation;

  /// The reason of a failure; null if the call is not done, or has not failed. May ask the membership, which takes a
  /// while and may throw.
  [[nodiscard]] const Failure* failure() const;
};

class Session final : public std::enable_shared_from_this<Session> {
 public:
  /// The longest single wait of a join between two calls of `pause`.
  static constexpr std::chrono::milliseconds kPausePeriod{500};

  /// Joins a job. Joins that wait here call `pause` now and then, which may throw. Throws what the membership throws,
  /// Failure, and what the engine throws; then the job has been left.
  static std::shared_ptr<Session> join(const std::string& job, process::Owned<Membership> membership,
                                       const std::function<void()>& pause = {});
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  [[nodiscard]] const Grant& grant() const noexcept { return grant_; }
  [[nodiscard]] int rank() const noexcept { return static_cast<int>(grant_.engine.rank); }
  [[nodiscard]] int world_size() const noexcept { return grant_.world_size(); }

  /// Starts a collective, as Engine::submit does. Also throws Failure: the failure of the session.
  [[nodiscard]] Call submit(engine::Request request);
  /// Takes completed calls whose requests have `notify`, each once; sleeps up to `timeout` for the first.
  [[nodiscard]] std::vector<Call> take_completed(std::chrono::nanoseconds timeout);
  /// Makes take_completed() return this call, too, though its request has no `notify`.
  void notify(const Call& call);

  /// True if nothing has failed, and this is the process that joined.
  [[nodiscard]] bool is_usable() const noexcept { return own_engine_->is_usable(); }
  [[nodiscard]] engine::Standing standing() const { return own_engine_->standing(); }
  [[nodiscard]] engine::EngineStats stats() const { return own_engine_->stats(); }
  /// The session's failure; null without one.
  [[nodiscard]] const Failure* failure() const noexcept { return failure_.load(); }

  /// Ends the job for everybody.
  void abort(const Failure& reason) { end(reason, true); }
  /// Leaves the job; pending calls fail. Idempotent. Throws what the membership throws.
  void leave();

  [[nodiscard]] bool is_forked() const noexcept { return !membership_.get_deleter().home.is_here(); }
  /// Throws Failure in a forked child.
  void check_process() const;

  // For the membership.
  /// The state of the data path: each counter for each aggregator (`results.0`), `greeted`, and the `status` and
  /// `tensor` of a failed collective, unless its cause is known. Empty before the data path is open.
  [[nodiscard]] Fields state() const;
  /// Halts an aggregator's part of the data path, in a move (docs/protocol.md, section 9). Returns the position of each
  /// slot, in eight hexadecimal digits each. Idempotent; takes a few seconds at most. Throws Failure (kClosed in a
  /// session that leaves), or what the engine throws.
  [[nodiscard]] std::string halt(std::size_t aggregator);
  /// Continues the halted part at another lease: `to` has the fields of an `aggregator` line, the number of the
  /// `aggregator`, and `roles`, a digit for each slot. Throws Failure, LineError, or what the engine throws.
  void move(const Line& to);
  /// Ends the job here. `tell_others`: the other workers do not know the end yet.
  void end(const Failure& failure, bool tell_others);

 private:
  friend struct Call;
  Session(const std::string& job, process::Owned<Membership> membership);

  void begin(const std::function<void()>& pause);
  void check_can_move() const;
  /// Opens the data path, with the sockets of each aggregator.
  void open(std::vector<std::vector<transport::UdpSocket>> sockets, const std::function<void()>& pause);
  /// Meets other ranks of this host, and returns the transports shared with them, by aggregator; takes the sockets that
  /// these need.
  [[nodiscard]] engine::Engine::Transports meet(const std::vector<engine::AggregatorConfig>& at,
                                                std::vector<std::vector<transport::UdpSocket>>& sockets,
                                                const std::function<void()>& pause);
  void greet(const std::function<void()>& pause);
  /// Records the first failure; returns true if this call did.
  bool fail(const Failure& failure) noexcept;
  /// Asks the membership why the data path has failed; returns the session's failure.
  const Failure& explain(const std::string& what, Fields fields);
  const Failure* failure_of(const engine::Operation& operation);

  const std::string job_;
  const int owner_;                      // the process that joined, for messages
  const Failure left_, without_memory_;  // made in advance, since a failure may leave no memory
  process::Owned<Membership> membership_;
  Grant grant_;
  std::unique_ptr<engine::Engine> own_engine_;
  std::mutex moving_;
  std::vector<bool> halted_early_;                // by aggregator: halted before there was an engine
  std::atomic<engine::Engine*> engine_{nullptr};  // set once the engine is there
  std::mutex failing_;
  std::optional<Failure> first_failure_;
  std::atomic<const Failure*> failure_{nullptr};  // the first failure, or without_memory_ if memory for it was missing
  std::atomic<bool> greeted_{false};
  std::atomic<bool> leaves_{false};
};

}  // namespace wiresum::session
